"""Mamba 1 and Falcon Mamba: layers that are one state space mixer each, without attention and feed-forwards."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model
from appliance.models.state_space import mamba


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Falcon Mamba norms the time step, b and c, without weights."""
    model = Model.of(facts, max_model_len)
    norm = NormSpec("rms", model.number("mixer_rms_eps", 1e-6), weight=False)
    is_normed = model.config.model_type == "falcon_mamba"
    return dense_decoder(model, mamba_modules(model), recurrent=mamba(model, "mixer", norm if is_normed else None))


def mamba_modules(model: Model) -> Dense:
    """Returns the names of both Mambas. Early checkpoints of Mamba 1 have another name of the embedding."""
    embed = "embedding" if model.has_tensor(".embedding.weight") else "embeddings"
    modules = {"embed": embed, "norm": "norm_f", "attention_norm": "norm"}
    return Dense(modules=modules, root="backbone.", single_blocks=True)
