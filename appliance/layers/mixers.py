"""The mixers: the blocks of a layer in which tokens see one another."""

from typing import NamedTuple

from appliance.layers.attention import emit_attention
from appliance.layers.gated_delta import emit_gated_delta
from appliance.layers.latent import emit_latent_attention
from appliance.layers.program import ProgramBuilder
from appliance.layers.recurrent_spec import GatedDeltaSpec, RecurrentSpec, RgLruSpec, ShortConvSpec, StateSpaceSpec
from appliance.layers.rg_lru import emit_rg_lru
from appliance.layers.short_conv import emit_short_conv
from appliance.layers.spec import AttentionSpec, LatentAttentionSpec, Mixer, ParallelSpec
from appliance.layers.state_space import emit_state_space
from appliance.program.slots import Slot


class Mixed(NamedTuple):
    """What an output projection reads: its weight's name, whether it has a bias, and a factor of `out`."""

    out: Slot
    weight: str
    bias: bool
    scale: float = 1.0


def emit_mixer(builder: ProgramBuilder, spec: Mixer, layer: int, x: Slot) -> list[Mixed]:
    """Emits the mixer of a layer over x [T, D], without its output projections, whose sum is the mixer's output."""
    prefix = f"layers.{layer}"
    if isinstance(spec, ParallelSpec):
        attention = Mixed(emit_attention(builder, spec.attention, layer, x), f"{prefix}.o", spec.attention.out_bias)
        recurrent = _emit_recurrent(builder, spec.recurrent, prefix, x)
        return [attention._replace(scale=spec.attention_scale), recurrent._replace(scale=spec.recurrent_scale)]
    if isinstance(spec, AttentionSpec):
        return [Mixed(emit_attention(builder, spec, layer, x), f"{prefix}.o", spec.out_bias)]
    if isinstance(spec, LatentAttentionSpec):
        return [Mixed(emit_latent_attention(builder, spec, layer, x), f"{prefix}.o", spec.out_bias)]
    return [_emit_recurrent(builder, spec, prefix, x)]


def _emit_recurrent(builder: ProgramBuilder, spec: RecurrentSpec, prefix: str, x: Slot) -> Mixed:
    match spec:
        case ShortConvSpec():
            return Mixed(emit_short_conv(builder, spec, prefix, x), f"{prefix}.conv.o", spec.out_bias)
        case GatedDeltaSpec():
            return Mixed(emit_gated_delta(builder, spec, prefix, x), f"{prefix}.delta.o", spec.out_bias)
        case StateSpaceSpec():
            return Mixed(emit_state_space(builder, spec, prefix, x), f"{prefix}.ssm.o", spec.out_bias)
        case RgLruSpec():
            return Mixed(emit_rg_lru(builder, spec, prefix, x), f"{prefix}.lru.o", bias=True)
