"""DistilBERT: BERT without token types, and with other names."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, Encoder, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
    "q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "o": "attention.out_lin",
    "post_attention_norm": "sa_layer_norm", "up": "ffn.lin1", "down": "ffn.lin2",
    "post_feed_forward_norm": "output_layer_norm",
}  # fmt: skip


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(
        modules=_MODULES,
        root="distilbert.",
        layers="transformer.layer.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec("post"),
        gated=False,
        learned_positions=True,
        encoder=Encoder(),
    )
    return dense_decoder(model, dense)
