"""Gemma 1 to 3 (text): norms stored as w - 1, and scaled embeddings.

Gemma 2 and 3 have norms on both sides of a block, and Gemma 3 also norms of query and key heads. Soft caps, windows and
rotary bases are those of the config.
"""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import AttentionSpec, DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model
from appliance.models.gemma_layers import OTHER_MEDIA, text_root


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """EmbeddingGemma is Gemma 3 whose tokens see those after them too. Weights that read images are left out."""
    model = Model.of(facts, max_model_len)
    has_sandwich = model.config.model_type != "gemma"
    dense = Dense(
        modules={"feed_forward_norm": "pre_feedforward_layernorm"} if has_sandwich else {},
        residual=ResidualSpec("sandwich" if has_sandwich else "pre"),
        stored_norms="none" if facts.stored.norm_includes_one else "add_one",
        query_key_norm=model.query_key_norm() if model.config.model_type == "gemma3_text" else None,
        embedding_scale=model.config.hidden_size**0.5,
        scales_embeds=False,
        root=text_root(model),
        ignored=OTHER_MEDIA,
        mixer=_both_ways if model.flag("use_bidirectional_attention", default=False) else None,
    )
    return dense_decoder(model, dense)


def _both_ways(_: int, attention: AttentionSpec) -> AttentionSpec:
    return replace(attention, is_whole=True)
