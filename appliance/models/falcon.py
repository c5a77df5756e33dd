"""Falcon 7B, 40B and Falcon 2 11B: a fused projection by KV head, and both blocks of a layer side by side."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "word_embeddings", "norm": "ln_f", "qkv": "self_attention.query_key_value", "o": "self_attention.dense",
    "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
}  # fmt: skip
_TWO_NORMS = {"attention_norm": "ln_attn", "feed_forward_norm": "ln_mlp"}
_TWO_NORMS_OF_GGUF = {"attention_norm": "ln_attn", "feed_forward_norm": "input_layernorm"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Raises ModelError for the models with ALiBi (falcon-rw)."""
    model = Model.of(facts, max_model_len, {"alibi": "positions here are rotary"})
    is_new = model.flag("new_decoder_architecture", default=False)
    is_parallel = is_new or model.flag("parallel_attn", default=True)
    one_norm = is_parallel and model.count("num_ln_in_parallel_attn", 2 if is_new else 1) == 1
    two_norms = _TWO_NORMS_OF_GGUF if facts.format == "gguf" else _TWO_NORMS
    dense = Dense(
        modules=_MODULES | (two_norms if is_parallel and not one_norm else {}),
        root="transformer.",
        layers="h.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec(parallel=is_parallel, one_norm=one_norm),
        qkv="joined" if facts.format == "gguf" else "by_head",
        gated=False,
    )
    return dense_decoder(model, dense)
