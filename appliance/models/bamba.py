"""Bamba: Mamba 2, with partly rotating attention in some layers."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, NormSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.family import Model
from appliance.models.jamba import JAMBA_MODULES
from appliance.models.state_space import mamba2, mamba2_spec


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = mamba2_spec(model, NormSpec("rms", model.config.norm_eps))
    return dense_decoder(model, Dense(modules=JAMBA_MODULES), recurrent=Recurrent(spec, mamba2(model, "mamba", spec)))
