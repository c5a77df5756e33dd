"""BERT, RoBERTa and XLM-R: encoders with learned positions, and a norm after each sum."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, Encoder, dense_decoder
from appliance.models.family import Model

_MODULES = {
    "embed": "embeddings.word_embeddings", "positions": "embeddings.position_embeddings",
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value", "o": "attention.output.dense",
    "post_attention_norm": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense",
    "post_feed_forward_norm": "output.LayerNorm",
}  # fmt: skip
_REFUSED = {
    "is_decoder": "an encoder sees the whole text",
    "add_cross_attention": "there is no other encoder to attend to",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Raises ModelError for positions that are not absolute."""
    model = Model.of(facts, max_model_len, _REFUSED)
    model.require("position_embedding_type", "absolute")
    dense = Dense(
        modules=_MODULES,
        root="bert." if model.config.model_type == "bert" else "roberta.",
        layers="encoder.layer.",
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        residual=ResidualSpec("post"),
        gated=False,
        learned_positions=True,
        position_offset=model.fields.dialect.first_position,
        # DistilBERT has none, and is BERT in GGUF files.
        encoder=Encoder(token_types=facts.format != "gguf" or model.has_tensor("token_type_embeddings.weight")),
    )
    return dense_decoder(model, dense)
