"""The common parts of Gemma models: norms stored as w - 1, and scaled embeddings.

Gemma 2 and 3 have norms on both sides of a block. Soft caps and windows are those of the config.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, NormSpec, QueryKeyNorm, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

_SANDWICH_MODULES = {"feed_forward_norm": "pre_feedforward_layernorm"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Gemma 1."""
    return _decoder(facts, max_model_len, ResidualSpec())


def gemma_decoder(facts: ModelFacts, max_model_len: int, head_norms: bool) -> DecoderSpec:
    """Returns the decoder of Gemma 2 or 3. Raises ModelError for the bidirectional (embedding) variants."""
    return _decoder(facts, max_model_len, ResidualSpec("sandwich"), head_norms)


def _decoder(facts: ModelFacts, max_model_len: int, residual: ResidualSpec, head_norms: bool = False) -> DecoderSpec:
    model = Model.of(facts, max_model_len, {"use_bidirectional_attention": "attention here is causal"})
    dense = Dense(
        modules=_SANDWICH_MODULES if residual.norms == "sandwich" else {},
        residual=residual,
        stored_norms="none" if facts.stored.norm_includes_one else "add_one",
        query_key_norm=QueryKeyNorm(NormSpec("rms", model.config.norm_eps)) if head_norms else None,
        embedding_scale=model.config.hidden_size**0.5,
    )
    return dense_decoder(model, dense)
