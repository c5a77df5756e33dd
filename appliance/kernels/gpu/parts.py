"""What may be exchanged in the executor: who runs an operator, the form of quantized weights, and what these need."""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.draws import Draws
from appliance.kernels.gpu.matrices import DeviceMatrix, Pack
from appliance.kernels.gpu.operators.table import Run
from appliance.kernels.gpu.segments import Call
from appliance.program.operators import Operator, StepProgram
from appliance.program.routing import Experts
from appliance.program.slots import Slot


class Kit(Protocol):
    """What the operators' functions need beside a step. tile_rows: the sizes in which they want the tokens of
    sequences that have several."""

    @property
    def tile_rows(self) -> tuple[int, ...]: ...

    @property
    def size_bytes(self) -> int:
        """The device's memory that it holds."""

    def has_experts(self, op: Experts, matrices: Mapping[str, DeviceMatrix]) -> bool:
        """Says whether kernels run these experts, without asking the device which were chosen."""

    @property
    def draws(self) -> Draws: ...

    def launches(self, *, is_decode: bool) -> AbstractContextManager[None]:
        """Returns the context in which the kernels of a step are started or captured. is_decode: its sequences have one
        new token each."""


class MakeKit(Protocol):
    def __call__(
        self,
        programs: Sequence[StepProgram],
        execution: Execution,
        dtype: torch.dtype,
        vectors: dict[str, torch.Tensor],
        device: Device,
    ) -> Kit: ...


class Fuse(Protocol):
    def __call__(
        self, calls: list[Call], matrices: Mapping[str, DeviceMatrix], kept: Slot | None = None
    ) -> list[Call]: ...


class Parts(NamedTuple):
    """table: who runs an operator in place of torch. pack: the form of a quantized matrix. fuse: makes one call of
    neighbours."""

    table: Mapping[type[Operator], Run]
    pack: Pack | None
    make_kit: MakeKit | None
    fuse: Fuse | None = None


ON_TORCH = Parts({}, None, None)


def triton_parts() -> Parts:
    """Returns the parts that Triton's kernels are. Raises ModuleNotFoundError if triton is not installed."""
    parts: Parts = importlib.import_module("appliance.kernels.gpu.with_triton").PARTS
    return parts
