"""Baichuan 1 and 2: Llama with fused projections; the larger ones have ALiBi in place of positions."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.bloom import ALIBI
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_VOCABULARY_OF_2 = 125_696  # of the models whose head has rows of length one


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Configs of models with ALiBi have a `model_max_length` and no `max_position_embeddings`."""
    model = Model.of(facts, max_model_len)
    has_alibi = "max_position_embeddings" not in model.facts.config
    dense = Dense(
        modules={"qkv": "self_attn.W_pack"},
        qkv="apart" if facts.format == "gguf" else "joined",
        mixer=(lambda _, attention: replace(attention, rope=None, alibi=ALIBI)) if has_alibi else None,
    )
    spec = dense_decoder(model, dense)
    if model.config.vocab_size != _VOCABULARY_OF_2:
        return spec
    head = replace(spec.weights["head"], transform="unit_rows")
    return replace(spec, weights={**spec.weights, "head": head})
