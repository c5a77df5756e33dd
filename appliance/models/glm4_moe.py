"""GLM 4.5 and 4.6: partial rotation, optional head norms, and the experts of DeepSeek V3."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.deepseek_routing import deepseek_mixture, drafting_layers
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Layers after the last one draft tokens for speculation, and are left out."""
    model = Model.of(facts, max_model_len)
    mixture = deepseek_mixture(model, renormalize=True, first_dense=1)
    dense = Dense(
        query_key_norm=model.query_key_norm() if model.flag("use_qk_norm", default=False) else None,
        ignored=drafting_layers(model, 1),
    )
    return dense_decoder(model, dense, mixture)
