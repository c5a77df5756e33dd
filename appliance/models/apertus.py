"""Apertus: Llama with norms of query and key heads, and a feed-forward of a learned activation without a gate."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, FeedForwardSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model, Part
from appliance.program.record import XIELU_PARAMETERS

_MODULES = {"attention_norm": "attention_layernorm", "feed_forward_norm": "feedforward_layernorm"}
_PARTS = tuple(Part(f"activation.{name}", f"mlp.act_fn.{name}", suffix="") for name in XIELU_PARAMETERS)


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, own_activation="xielu")
    dense = Dense(modules=_MODULES, query_key_norm=model.query_key_norm(), gated=False)
    if model.config.activation != "xielu":
        return dense_decoder(model, dense)
    fed = FeedForwardSpec(model.config.intermediate_size, "xielu", gated=False, bias=model.config.mlp_bias)
    return dense_decoder(model, replace(dense, parts=_PARTS), feed_forward=fed)
