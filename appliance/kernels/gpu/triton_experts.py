"""Memory in which Triton's kernels run routed experts: one for all layers of a shape, and views of it by step."""

from collections.abc import Mapping

import torch

from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.matrices import DenseMatrix, DeviceMatrix
from appliance.kernels.gpu.packed_matrix import PackedMatrix
from appliance.kernels.gpu.triton.experts import (
    LEAST_EXPERT_ROWS,
    ExpertMatrices,
    ExpertOptions,
    ExpertWorkspace,
    tile_rows_of,
)
from appliance.kernels.gpu.triton.experts_order import num_expert_tiles
from appliance.kernels.gpu.triton.packing import PackedQuantized
from appliance.program.device_memory import ExpertShape
from appliance.program.routing import Experts


class ExpertMemory:
    """The memory of one shape, for steps of at most so many tokens."""

    def __init__(
        self, shape: ExpertShape, max_tokens: int, dtype: torch.dtype, device: Device, batch_invariant: bool = False
    ) -> None:
        """batch_invariant: tiles have as many rows in every step, so that rows round alike."""
        self._shape, self._is_fixed = shape, batch_invariant
        self._integers = [device.zeros(size, dtype=torch.int32) for size in shape.integers(max_tokens)]
        positions = shape.positions(max_tokens)
        self._floats = [device.zeros(positions, width, dtype=dtype) for width in (shape.opened, shape.inner, shape.out)]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._integers, *self._floats))

    def of(self, num_tokens: int) -> ExpertWorkspace:
        """Returns the memory's part for a step of exactly so many tokens."""
        shape, pairs = self._shape, num_tokens * self._shape.num_chosen
        rows = LEAST_EXPERT_ROWS if self._is_fixed else tile_rows_of(pairs, shape.num_experts)
        tiles = num_expert_tiles(pairs, shape.num_experts, rows)
        counts, places, order, tile_experts = self._integers
        opened, inner, result = (part[: tiles * rows] for part in self._floats)
        return ExpertWorkspace(
            rows, counts, places[:pairs], order[: tiles * rows], tile_experts[:tiles], opened, inner, result
        )


def expert_matrices(
    op: Experts, matrices: Mapping[str, DeviceMatrix], vectors: Mapping[str, torch.Tensor]
) -> ExpertMatrices | None:
    """Returns the weights of an operator as kernels take them; None if one has no form that they know."""

    def bias(name: str | None) -> torch.Tensor | None:
        return None if name is None else vectors[name].flatten()

    found = {name: _matrix(matrices[name]) for name in op.named(op.matrices)}
    up, down = found[op.up], found[op.down]
    gate = None if op.gate is None else found[op.gate]
    if up is None or down is None or (op.gate is not None and gate is None):
        return None
    biases = (bias(op.gate_bias), bias(op.up_bias), bias(op.down_bias))
    return ExpertMatrices(op.num_own, up, down, gate, *biases)


def _matrix(matrix: DeviceMatrix) -> torch.Tensor | PackedQuantized | None:
    if isinstance(matrix, PackedMatrix):
        return matrix.packed
    return matrix.values if isinstance(matrix, DenseMatrix) else None


def expert_options(op: Experts) -> ExpertOptions:
    return ExpertOptions(op.width, op.kind, op.is_gated, op.limit, op.alpha, op.up_offset, op.weigh_input)
