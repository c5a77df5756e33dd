"""Mamba 2, and Codestral Mamba by the same class: layers that are one state space mixer each."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Recurrent, dense_decoder
from appliance.models.family import Model
from appliance.models.mamba import mamba_modules
from appliance.models.state_space import mamba2, mamba2_spec


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = mamba2_spec(model, NormSpec("rms", model.config.norm_eps))
    return dense_decoder(model, mamba_modules(model), recurrent=Recurrent(spec, mamba2(model, "mixer", spec)))
