"""MiniCPM 3: latent attention, and multipliers of the embedding, the blocks and the logits."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model
from appliance.models.latent import with_latent_attention


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, with_latent_attention(model, minicpm_differences(model), interleaved=False))


def minicpm_differences(model: Model) -> Dense:
    """Returns the multipliers of the config as differences from Llama."""
    config = model.config
    return Dense(
        residual=ResidualSpec(multiplier=model.number("scale_depth", 1.4) / config.num_layers**0.5),
        embedding_scale=model.number("scale_emb", 12.0),
        scales_embeds=False,
        logit_scale=model.number("dim_model_base", 256.0) / config.hidden_size,
    )
