"""StarCoder 2: Llama with layer norms, biases, and a feed-forward without a gate."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    norm = NormSpec("layer", model.config.norm_eps, bias=True)
    modules = {"up": "mlp.c_fc", "down": "mlp.c_proj"}
    return dense_decoder(model, Dense(modules=modules, norm=norm, gated=False))
