"""The common parts of Gemma 2 and 3: four norms per layer stored as w - 1, scaled embeddings, soft caps, windows."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, LayerSpec, NormSpec, Transform
from appliance.models.family import Model, Part


def gemma_decoder(facts: ModelFacts, max_model_len: int, head_norms: bool) -> DecoderSpec:
    """Returns the decoder of Gemma 2 or 3. Raises ModelError for the bidirectional (embedding) variants."""
    model = Model.of(facts, max_model_len, {"use_bidirectional_attention": "attention here is causal"})
    config = model.config
    norm = NormSpec("rms", config.norm_eps)
    layers = tuple(
        LayerSpec(
            model.attention(layer, norm if head_norms else None),
            model.feed_forward(),
            post_attention_norm=True,
            post_feed_forward_norm=True,
        )
        for layer in config.layers
    )
    stored_norm: Transform = "none" if model.facts.stored.norm_includes_one else "add_one"
    top = [Part("embed", "embed_tokens"), Part("norm", "norm", transform=stored_norm)]
    head = [] if config.tie_embeddings else [Part("head", "lm_head")]
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=layers,
        norm=norm,
        weights=model.weights(top + head, _layer_parts(model, stored_norm, head_norms)),
        embedding_scale=config.hidden_size**0.5,
        tie_embeddings=config.tie_embeddings,
        logit_soft_cap=config.final_soft_cap,
        ignored_tensors=model.ignored(),
    )


def _layer_parts(model: Model, stored_norm: Transform, head_norms: bool) -> list[Part]:
    bias = model.config.attention_bias
    norms = {
        "attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "post_feed_forward_norm": "post_feedforward_layernorm",
    }
    if head_norms:
        norms |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
    return [
        *(Part(name, module, transform=stored_norm) for name, module in norms.items()),
        Part("q", "self_attn.q_proj", bias),
        Part("k", "self_attn.k_proj", bias),
        Part("v", "self_attn.v_proj", bias),
        Part("o", "self_attn.o_proj", model.config.attention_out_bias),
        Part("gate", "mlp.gate_proj"),
        Part("up", "mlp.up_proj"),
        Part("down", "mlp.down_proj"),
    ]
