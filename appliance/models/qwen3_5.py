"""Qwen3.5 (text), dense and MoE: Qwen3-Next with other names, and alone or as the language part of a larger model."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Recurrent, dense_decoder
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.gated_delta import gated_delta_spec, split_parts
from appliance.models.qwen3_next import QWEN_EXPERTS, gated_attention, qwen_experts


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Images are no part of this version: the weights that read them are left out. Positions of text are the same in
    all three sections of its rotation, which is then the usual one."""
    model = Model.of(facts, max_model_len, {"attention_bias": "gates of attention have no biases here"})
    spec, is_part = gated_delta_spec(model), any("language_model." in tensor.name for tensor in facts.tensors)
    dense = replace(gated_attention(model), root="model.language_model." if is_part else "model.")
    mixture = Mixture.of(model, qwen_experts(model), QWEN_EXPERTS) if model.config.num_experts else None
    return dense_decoder(model, dense, mixture, Recurrent(spec, split_parts(model, spec, "linear_attn")))
