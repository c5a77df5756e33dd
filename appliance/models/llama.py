"""Llama 2 and 3, Mistral, Qwen 2 and 2.5, and their common parts with Qwen 3: pre-norm, rotary, gated feed-forward.

Biases, windows and rotary scaling come from the config; a GGUF file stores query and key rows for interleaved rotation.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, LayerSpec, NormSpec, Transform
from appliance.models.experts import Mixture, dense_parts
from appliance.models.family import Model, Part


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    return llama_decoder(Model.of(facts, max_model_len))


def llama_decoder(model: Model, head_norms: bool = False, mixture: Mixture | None = None) -> DecoderSpec:
    """mixture: which layers have experts in place of the one feed-forward."""
    config = model.config
    norm = NormSpec("rms", config.norm_eps)
    head_norm = norm if head_norms else None
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(
            LayerSpec(
                model.attention(layer, head_norm), mixture.feed_forward(index) if mixture else model.feed_forward()
            )
            for index, layer in enumerate(config.layers)
        ),
        norm=norm,
        weights=model.weights(_top_parts(model), lambda index: _layer_parts(model, head_norms, mixture, index)),
        tie_embeddings=config.tie_embeddings,
        ignored_tensors=model.ignored(),
    )


def _top_parts(model: Model) -> list[Part]:
    parts = [Part("embed", "embed_tokens"), Part("norm", "norm")]
    return parts if model.config.tie_embeddings else [*parts, Part("head", "lm_head")]


def _layer_parts(model: Model, head_norms: bool, mixture: Mixture | None, index: int) -> list[Part]:
    config = model.config
    order: Transform = "unpermute_heads" if model.facts.stored.interleaved_heads else "none"
    parts = [
        Part("attention_norm", "input_layernorm"),
        Part("q", "self_attn.q_proj", config.attention_bias, order, config.num_heads),
        Part("k", "self_attn.k_proj", config.attention_bias, order, config.num_kv_heads),
        Part("v", "self_attn.v_proj", config.attention_bias),
        Part("o", "self_attn.o_proj", config.attention_out_bias),
        Part("feed_forward_norm", "post_attention_layernorm"),
        *(mixture.parts(index) if mixture else dense_parts("", "mlp", config.mlp_bias)),
    ]
    if head_norms:
        parts += [Part("q_norm", "self_attn.q_norm"), Part("k_norm", "self_attn.k_norm")]
    return parts
