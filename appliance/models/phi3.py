"""Phi-3 and 3.5: Llama with fused projections in the checkpoint, partial rotation and longrope scaling."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, LayerSpec, NormSpec
from appliance.models.family import Model, Part


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    config = model.config
    top = [Part("embed", "embed_tokens"), Part("norm", "norm")]
    head = [] if config.tie_embeddings else [Part("head", "lm_head")]
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(LayerSpec(model.attention(layer), model.feed_forward()) for layer in config.layers),
        norm=NormSpec("rms", config.norm_eps),
        weights=model.weights(top + head, _layer_parts(model)),
        tie_embeddings=config.tie_embeddings,
        ignored_tensors=model.ignored(),
    )


def _layer_parts(model: Model) -> list[Part]:
    config = model.config
    q_end = config.num_heads * config.head_dim
    k_end = q_end + config.num_kv_heads * config.head_dim
    v_end = k_end + config.num_kv_heads * config.head_dim
    width = config.intermediate_size
    return [
        Part("attention_norm", "input_layernorm"),
        Part("q", "self_attn.qkv_proj", rows=(0, q_end)),
        Part("k", "self_attn.qkv_proj", rows=(q_end, k_end)),
        Part("v", "self_attn.qkv_proj", rows=(k_end, v_end)),
        Part("o", "self_attn.o_proj"),
        Part("feed_forward_norm", "post_attention_layernorm"),
        Part("gate", "mlp.gate_up_proj", rows=(0, width)),
        Part("up", "mlp.gate_up_proj", rows=(width, 2 * width)),
        Part("down", "mlp.down_proj"),
    ]
