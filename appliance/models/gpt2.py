"""GPT-2: learned positions, layer norms, biases everywhere, and linear weights stored (in, out) in safetensors."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec, Transform
from appliance.models.family import Model, Part

_CAUSAL_MASKS = ("*.attn.bias", "*.attn.masked_bias")  # stored as buffers


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"add_cross_attention": "there is no encoder to attend to"})
    config = model.config
    top = [Part("embed", "wte"), Part("positions", "wpe"), Part("norm", "ln_f", bias=True)]
    head = [] if config.tie_embeddings else [Part("head", "lm_head")]
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(
            LayerSpec(_attention(model, index), model.feed_forward(gated=False)) for index in range(config.num_layers)
        ),
        norm=NormSpec("layer", config.norm_eps),
        weights=model.weights(top + head, _layer_parts(model), root="transformer.", layers="h."),
        learned_positions=True,
        tie_embeddings=config.tie_embeddings,
        ignored_tensors=(*model.ignored(), *_CAUSAL_MASKS),
    )


def _attention(model: Model, index: int) -> AttentionSpec:
    attention = model.attention(model.config.layers[index])
    scale = attention.scale if model.flag("scale_attn_weights", default=True) else 1.0
    if model.flag("scale_attn_by_inverse_layer_idx", default=False):
        scale /= index + 1
    return replace(attention, scale=scale)


def _layer_parts(model: Model) -> list[Part]:
    width = model.config.hidden_size
    stored: Transform = "transpose" if model.facts.stored.linear_is_transposed else "none"
    return [
        Part("attention_norm", "ln_1", bias=True),
        Part("q", "attn.c_attn", True, stored, rows=(0, width)),
        Part("k", "attn.c_attn", True, stored, rows=(width, 2 * width)),
        Part("v", "attn.c_attn", True, stored, rows=(2 * width, 3 * width)),
        Part("o", "attn.c_proj", True, stored),
        Part("feed_forward_norm", "ln_2", bias=True),
        Part("up", "mlp.c_fc", True, stored),
        Part("down", "mlp.c_proj", True, stored),
    ]
