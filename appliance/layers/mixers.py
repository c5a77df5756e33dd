"""The mixers: the blocks of a layer in which tokens see one another."""

from appliance.layers.attention import emit_attention
from appliance.layers.latent import emit_latent_attention
from appliance.layers.program import ProgramBuilder
from appliance.layers.spec import LatentAttentionSpec, Mixer
from appliance.program.slots import Slot


def emit_mixer(builder: ProgramBuilder, spec: Mixer, layer: int, x: Slot) -> Slot:
    """Emits the mixer of a layer over x [T, D], without its output projection; returns what that projection reads."""
    if isinstance(spec, LatentAttentionSpec):
        return emit_latent_attention(builder, spec, layer, x)
    return emit_attention(builder, spec, layer, x)
