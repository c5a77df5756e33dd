"""GLM 4 (2024) and GLM-4-0414: pairs rotate in half of a head, gate and up are one module; the later has norms on both
sides of a block.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_SANDWICH_MODULES = {
    "post_attention_norm": "post_self_attn_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "post_feed_forward_norm": "post_mlp_layernorm",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    if model.config.model_type == "glm":
        is_joined = model.has_tensor(".self_attn.qkv_proj.weight")  # in GGUF files of ChatGLM
        return dense_decoder(model, Dense(gate_up=True, interleaved=True, qkv="joined" if is_joined else "apart"))
    dense = Dense(modules=_SANDWICH_MODULES, residual=ResidualSpec("sandwich"), gate_up=True, interleaved=True)
    return dense_decoder(model, dense)
