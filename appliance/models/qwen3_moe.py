"""Qwen 3 MoE: Qwen 3 with experts in place of feed-forwards, chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import Mixture
from appliance.models.family import Model
from appliance.models.qwen2_moe import qwen_routing, qwen_sparse_layers


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    mixture = Mixture.of(model, model.experts(qwen_routing(model)), is_sparse=qwen_sparse_layers(model))
    return dense_decoder(model, Dense(query_key_norm=model.query_key_norm()), mixture)
