"""Which matrices a layer has that can stay in memory of the host and be copied to a device in each step."""

from collections.abc import Mapping

from appliance.program.head_matrices import head_matrices
from appliance.program.operators import StepProgram
from appliance.program.stages import layer_of

NUM_BUFFERS = 2  # of the device: one layer is computed while the next one is copied


def streamable_matrices(program: StepProgram) -> Mapping[str, int]:
    """Returns the layer of each: not of matrices by head, which a device keeps in another form than the checkpoint."""
    layers = {name: layer_of(name) for name in program.matrices() - head_matrices(program)}
    return {name: layer for name, layer in layers.items() if layer is not None}
