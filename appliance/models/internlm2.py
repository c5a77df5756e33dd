"""InternLM 2 and 2.5: Llama with other names, and projections fused by KV head."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "tok_embeddings",
    "head": "output",
    "attention_norm": "attention_norm",
    "feed_forward_norm": "ffn_norm",
    "qkv": "attention.wqkv",
    "o": "attention.wo",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return dense_decoder(Model.of(facts, max_model_len), Dense(modules=_MODULES, qkv="by_head"))
