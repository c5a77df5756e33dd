"""Falcon-H1: attention and Mamba 2 side by side in every layer, and a multiplier at every place."""

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import StateSpaceSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.family import Model
from appliance.models.jamba import JAMBA_MODULES
from appliance.models.state_space import mamba2, mamba2_spec


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """A factor of the attention's input is one of queries, keys and values, so it is part of the scores' factor, and of
    its output's. Biases would not have those factors."""
    biases = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
    model = Model.of(facts, max_model_len, dict.fromkeys(biases, "its multipliers leave out biases"))
    spec = _spec(model)
    entry = model.number("attention_in_multiplier", 1.0)
    recurrent = Recurrent(
        spec,
        mamba2(model, "mamba", spec),
        attention_scale=entry * model.number("attention_out_multiplier", 1.0),
        scale=model.number("ssm_out_multiplier", 1.0),
    )
    gate, down = _multipliers(model, "mlp_multipliers", 2)
    dense = Dense(
        modules=JAMBA_MODULES,
        embedding_scale=model.number("embedding_multiplier", 1.0),
        scales_embeds=False,
        logit_scale=model.number("lm_head_multiplier", 1.0),
        score_scale=entry**2 * model.number("key_multiplier", 1.0),
    )
    feed_forward = replace(model.feed_forward(), gate_scale=gate, down_scale=down)
    return dense_decoder(model, dense, recurrent=recurrent, feed_forward=feed_forward)


def _spec(model: Model) -> StateSpaceSpec:
    width = model.count("mamba_d_ssm", 0) or None
    norm = NormSpec("rms", model.config.norm_eps) if model.flag("mamba_rms_norm", default=False) else None
    entry = model.number("ssm_in_multiplier", 1.0)
    z, x, b, c, dt = (entry * factor for factor in _multipliers(model, "ssm_multipliers", 5))
    return replace(
        mamba2_spec(model, norm, width),
        norm_before_gate=model.flag("mamba_norm_before_gate", default=True),
        multipliers=(z, x, b, c, dt),
    )


def _multipliers(model: Model, key: str, count: int) -> list[float]:
    """Returns so many numbers of the config, all 1 by default. Raises CheckpointError for any other value."""
    values = model.fields.get(key) or [1.0] * count
    is_list = isinstance(values, list | tuple) and len(values) == count
    if not is_list or not all(isinstance(value, int | float) and abs(value) < 1e30 for value in values):
        raise CheckpointError("config.json", f"{key} is {values!r}; {count} numbers are expected")
    return [float(value) for value in values]
