"""MPNet: BERT without token types, and with a bias of the scores by the distance of two tokens."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, PositionBias, ResidualSpec
from appliance.models.dense import Dense, Encoder, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
    "q": "attention.attn.q", "k": "attention.attn.k", "v": "attention.attn.v", "o": "attention.attn.o",
    "post_attention_norm": "attention.LayerNorm", "up": "intermediate.dense", "down": "output.dense",
    "post_feed_forward_norm": "output.LayerNorm", "position_bias": "encoder.relative_attention_bias",
}  # fmt: skip
_MAX_DISTANCE = 128  # of the transformers class, which no config states


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(
        modules=_MODULES,
        root="mpnet.",
        layers="encoder.layer.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec("post"),
        gated=False,
        learned_positions=True,
        position_offset=model.fields.dialect.first_position,
        encoder=Encoder(position_bias=PositionBias(model.count("relative_attention_num_buckets", 32), _MAX_DISTANCE)),
    )
    return dense_decoder(model, dense)
