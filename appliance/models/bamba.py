"""Bamba: Mamba 2, with partly rotating attention in some layers."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.family import Model
from appliance.models.jamba import JAMBA_MODULES
from appliance.models.state_space import mamba2, mamba2_spec

# Files have the names of Granite 4.
_MODULES_OF_GGUF = {
    "gate": "shared_mlp.gate_linear",
    "up": "shared_mlp.up_linear",
    "down": "shared_mlp.output_linear",
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = mamba2_spec(model, NormSpec("rms", model.config.norm_eps))
    modules = _MODULES_OF_GGUF if facts.format == "gguf" else JAMBA_MODULES
    return dense_decoder(model, Dense(modules=modules), recurrent=Recurrent(spec, mamba2(model, "mamba", spec)))
