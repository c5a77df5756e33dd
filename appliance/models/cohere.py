"""Cohere's Command models: both blocks of a layer read one layer norm without a bias, and the logits are scaled.

Command R7B and later (Cohere 2) rotate in their windowed layers alone.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, QueryKeyNorm, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    norm = NormSpec("layer", model.config.norm_eps)
    has_norms = model.flag("use_qk_norm", default=False)
    dense = Dense(
        norm=norm,
        residual=ResidualSpec(parallel=True, one_norm=True),
        query_key_norm=QueryKeyNorm(norm, by_head=True) if has_norms else None,
        interleaved=True,
        logit_scale=model.number("logit_scale", 0.0625),
    )
    return dense_decoder(model, dense)
