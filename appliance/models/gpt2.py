"""GPT-2: learned positions, layer norms, biases everywhere, and linear weights stored (in, out) in safetensors. GPT
BigCode: the same with one KV head for all queries, stored (out, in).
"""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, LayerSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "wte", "positions": "wpe", "norm": "ln_f", "attention_norm": "ln_1", "feed_forward_norm": "ln_2",
    "qkv": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj",
}  # fmt: skip
_CAUSAL_MASKS = ("*.attn.bias", "*.attn.masked_bias")  # stored as buffers


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"add_cross_attention": "there is no encoder to attend to"})
    is_bigcode = model.config.model_type == "gpt_bigcode"
    dense = Dense(
        modules=_MODULES,
        root="transformer.",
        layers="h.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        qkv="by_head" if is_bigcode and not model.flag("multi_query", default=True) else "joined",
        linear="transpose" if facts.stored.linear_is_transposed and not is_bigcode else "none",
        gated=False,
        learned_positions=True,
        ignored=_CAUSAL_MASKS,
    )
    decoder = dense_decoder(model, dense)
    return replace(decoder, layers=tuple(_scaled(model, layer, at) for at, layer in enumerate(decoder.layers)))


def _scaled(model: Model, layer: LayerSpec, index: int) -> LayerSpec:
    attention = layer.mixer
    assert isinstance(attention, AttentionSpec), "every layer of this family attends"
    scale = attention.scale if model.flag("scale_attn_weights", default=True) else 1.0
    if model.flag("scale_attn_by_inverse_layer_idx", default=False):
        scale /= index + 1
    return replace(layer, mixer=replace(attention, scale=scale))
