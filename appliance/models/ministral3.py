"""Ministral 3: Llama whose queries are warmer beyond the context before yarn."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import AttentionSpec, DecoderSpec, Temperature
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, Dense(mixer=lambda layer, attention: _attention(model, layer, attention)))


def _attention(model: Model, layer: int, attention: AttentionSpec) -> AttentionSpec:
    rope = model.config.layers[layer].rope
    beta = None if rope is None else rope.parameters.get("llama_4_scaling_beta")
    if rope is None or not beta:
        return attention
    length = int(rope.parameters.get("original_max_position_embeddings", model.config.max_position))
    return replace(attention, temperature=Temperature(float(beta), length))
