"""Which operators a graph can hold: those that read the device's arrays of a step, and nothing on the host."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.gpu.operators import adapters, attention
from appliance.kernels.gpu.operators.by_reference import by_reference
from appliance.kernels.gpu.operators.table import Run
from appliance.kernels.gpu.parts import Kit
from appliance.kernels.interface import StepInputs
from appliance.program import operators as ops
from appliance.program.adapters import AdapterLinear
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.ranks import Gather, Meet
from appliance.program.routing import ChooseExperts, Experts, GatedAdd, MixExperts, PlaceExperts
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace
from appliance.program.streams import CorrectStreams, GaussianTopK, MatchMagnitude, MixStreams

# Whoever runs these, their work depends on the number of rows alone.
_BY_ROWS: Final = frozenset({
    ops.Activation, ops.Add, ops.Copy, ops.Embed, ops.GatedActivation, ops.GatherRows, GaussianTopK, ops.HeadNorm,
    ops.KvWrite, ops.LayerNorm, ops.Linear, ops.RmsNorm, ops.Rope, ops.Scale, ops.ScaleByWeight, ops.SoftCap,
    ChooseExperts, CorrectStreams, Gather, GatedAdd, HeadLinear, MatchMagnitude, Meet, MixExperts, MixStreams,
    PlaceExperts, ScaleByPosition,
})  # fmt: skip

_WITH_STATES: Final = (GatedDelta, RgLru, ShortConv, StateSpace)


def can_capture(
    run: Run,
    op: ops.Operator,
    device: Device,
    matrices: Mapping[str, DeviceMatrix],
    kit: Kit | None,
    *,
    is_decode: bool,
) -> bool:
    """Returns whether the function that runs an operator can be captured. is_decode: in a step whose sequences have
    one new token each: then attention and states are kernels of a fixed number of programs."""
    if isinstance(op, ops.PagedAttention):
        asks_host = run is attention.paged_attention and device.is_gpu
        return is_decode and not asks_host
    if isinstance(op, _WITH_STATES):
        return is_decode and run is not by_reference
    if isinstance(op, AdapterLinear):
        return run is not adapters.adapter_linear  # which asks the host which adapters there are
    if isinstance(op, Experts):
        return kit is not None and kit.has_experts(op, matrices)
    return type(op) in _BY_ROWS


def empty_step(num_groups: int) -> StepInputs:
    """Returns a step without a sequence."""
    none = np.zeros(0, np.int32)
    slots, tables = np.zeros((num_groups, 0), np.int32), np.zeros((num_groups, 0, 1), np.int32)
    return StepInputs(none, none, slots, np.zeros(1, np.int32), none, tables, none)
