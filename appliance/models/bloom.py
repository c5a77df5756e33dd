"""BLOOM: ALiBi in place of positions, layer norms, a norm of the embedding, and projections fused by head."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

ALIBI = 8.0  # the largest exponent of slopes
_MODULES = {
    "embed": "word_embeddings",
    "embed_norm": "word_embeddings_layernorm",
    "norm": "ln_f",
    "qkv": "self_attention.query_key_value",
    "o": "self_attention.dense",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}
_REFUSED = {"apply_residual_connection_post_layernorm": "blocks add to the stream, not to its norm"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, _REFUSED)
    dense = Dense(
        modules=_MODULES,
        root="transformer.",
        layers="h.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        qkv="joined" if facts.format == "gguf" else "by_head",
        gated=False,
        embedding_norm=True,
        mixer=lambda _, attention: replace(attention, alibi=ALIBI),
    )
    return dense_decoder(model, dense)
