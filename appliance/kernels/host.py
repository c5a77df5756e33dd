"""The checks of kernel sets that run on the host."""

from appliance.kernels.errors import BindError
from appliance.kernels.execution import Placement
from appliance.program.operators import StepProgram


def check_host(name: str, program: StepProgram, placement: Placement) -> None:
    """Raises BindError for a device other than the CPU, and for activations that are neither f32 nor int32."""
    if placement.device != "cpu":
        raise BindError(f"kernel set {name} runs on cpu, not on {placement.device}")
    for slot in program.slots:
        if slot.dtype not in ("f32", "int32"):
            raise BindError(f"kernel set {name} keeps activations in f32 and int32; slot {slot.index} is {slot.dtype}")
