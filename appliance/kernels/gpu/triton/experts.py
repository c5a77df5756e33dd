"""Operator Experts: the chosen experts of each token, and their weighted sum."""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.activation import ACTIVATIONS, activate
from appliance.kernels.gpu.triton.experts_linear import expert_linear
from appliance.kernels.gpu.triton.experts_order import num_expert_tiles, order_by_expert
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.kernels.gpu.triton.linear import LinearTile
from appliance.kernels.gpu.triton.packing import PackedQuantized
from appliance.program.device_memory import EXPERT_TILE_ROWS
from appliance.program.record import ActivationKind

_BLOCK = 1024
LEAST_EXPERT_ROWS, _MOST_ROWS = 16, EXPERT_TILE_ROWS

Matrix = torch.Tensor | PackedQuantized


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The weights of operator Experts by their fields' names, [E * rows, columns], and biases [E * rows]."""

    num_experts: int
    up: Matrix
    down: Matrix
    gate: Matrix | None = None
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """The fields of operator Experts of the same names."""

    width: int
    kind: ActivationKind
    is_gated: bool = True
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    weigh_input: bool = False


@dataclass(frozen=True, slots=True)
class ExpertWorkspace:
    """What `mixture` writes between its kernels, for at most so many tokens."""

    tile_rows: int
    counts: torch.Tensor
    places: torch.Tensor
    order: torch.Tensor
    tile_experts: torch.Tensor
    opened: torch.Tensor
    inner: torch.Tensor
    result: torch.Tensor

    @classmethod
    def allocate(
        cls, num_tokens: int, num_chosen: int, matrices: ExpertMatrices, options: ExpertOptions, out_width: int,
        dtype: torch.dtype, device: torch.device | str, batch_invariant: bool = False,
    ) -> Self:  # fmt: skip
        """Allocates for steps of so many tokens; their number decides the rows of a tile, unless batch_invariant."""
        pairs = num_tokens * num_chosen
        rows = LEAST_EXPERT_ROWS if batch_invariant else tile_rows_of(pairs, matrices.num_experts)
        tiles = num_expert_tiles(pairs, matrices.num_experts, rows)

        def integers(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.int32, device=device)

        def floats(width: int) -> torch.Tensor:
            return torch.empty(tiles * rows, width, dtype=dtype, device=device)

        opened = options.width * (2 if options.is_gated else 1)
        return cls(
            rows, integers(matrices.num_experts), integers(pairs), integers(tiles * rows), integers(tiles),
            floats(opened), floats(options.width), floats(out_width),
        )  # fmt: skip


def tile_rows_of(num_pairs: int, num_experts: int) -> int:
    """Returns how many rows of an expert are multiplied together: about as many as one has on average."""
    return min(_MOST_ROWS, max(LEAST_EXPERT_ROWS, power_of_two(max(1, num_pairs // num_experts))))


@triton.jit
def expert_activation_kernel(
    opened, out, order, opened_stride, out_stride, width, limit, alpha, up_offset,
    KIND: tl.constexpr, SILU: tl.constexpr, GATED: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a position and BLOCK columns."""
    position = tl.program_id(0).to(tl.int64)
    after_previous(PDL)
    if tl.load(order + position) < 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    at = opened + position * opened_stride + column
    gate = tl.load(at, mask=is_live, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(at + width, mask=is_live, other=0.0).to(tl.float32)
        if LIMIT:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
        y = activate(gate, KIND)
        if SILU:
            y = gate * tl.sigmoid(alpha * gate)
        y *= up + up_offset
    else:
        y = activate(gate, KIND)
    tl.store(out + position * out_stride + column, y.to(out.dtype.element_ty), mask=is_live)


@triton.jit
def expert_sum_kernel(
    result, places, factors, out, result_stride, out_stride, width,
    CHOSEN: tl.constexpr, WEIGH: tl.constexpr, PLACED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a token and BLOCK columns; experts are added in the order in which they stand. PLACED: results are
    where `places` says, and not in the order of pairs."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    acc = tl.zeros([BLOCK], tl.float32)
    for chosen in tl.static_range(CHOSEN):
        position = token * CHOSEN + chosen
        if PLACED:
            position = tl.load(places + position).to(tl.int64)
        y = tl.load(result + position * result_stride + column, mask=is_live, other=0.0).to(tl.float32)
        if WEIGH:
            y *= tl.load(factors + token * CHOSEN + chosen).to(tl.float32)
        acc += y
    tl.store(out + token * out_stride + column, acc.to(out.dtype.element_ty), mask=is_live)


@triton.jit
def expert_outputs_kernel(
    result, places, out, result_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a pair and BLOCK columns: its expert's output, or zeros where another rank has the expert."""
    pair = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_live = column < width
    after_previous(PDL)
    position = tl.load(places + pair).to(tl.int64)
    y = tl.load(result + position * result_stride + column, mask=is_live & (position >= 0), other=0.0)
    tl.store(out + pair * width + column, y.to(out.dtype.element_ty), mask=is_live)


def mixture(
    x: torch.Tensor,
    experts: torch.Tensor,
    factors: torch.Tensor,
    matrices: ExpertMatrices,
    options: ExpertOptions,
    out: torch.Tensor,
    workspace: ExpertWorkspace,
    pdl: bool = False,
    first_own: int | None = None,
) -> None:
    """out[t] = the sum over the experts of x[t], as operator Experts says. Rows round alike for tiles of as many rows.

    x: a span [T, D]. experts: int32 [T, k] and factors: f32 [T, k], contiguous. out: a span [T, D]. The workspace is
    for exactly T tokens. Between kernels numbers are rounded to the type of the workspace.

    first_own: the first of a rank's own experts, whose weights the matrices are; then out is [T, k * D], contiguous:
    the outputs of the own experts before the factor, and zeros for others.
    """
    num_chosen, space = experts.shape[1], workspace
    order_by_expert(
        experts, space.order, space.places, space.tile_experts, space.counts, space.tile_rows, pdl,
        first_own or 0,
    )  # fmt: skip
    of_pairs = factors.view(-1) if options.weigh_input else None
    starts = {"": 0} if matrices.gate is None else {"gate": 0, "up": options.width}
    for name, start in starts.items():
        weight, bias = (matrices.gate, matrices.gate_bias) if name == "gate" else (matrices.up, matrices.up_bias)
        assert weight is not None, "it has a gate"
        target = space.opened[:, start:] if name != "gate" else space.opened[:, : options.width]
        expert_linear(
            x, weight, bias, target, space.order, space.tile_experts, matrices.num_experts, expert_tile(weight, space),
            num_chosen, of_pairs, pdl,
        )  # fmt: skip
    _activate(space, options, pdl)
    expert_linear(
        space.inner, matrices.down, matrices.down_bias, space.result, space.order, space.tile_experts,
        matrices.num_experts, expert_tile(matrices.down, space), pdl=pdl,
    )  # fmt: skip
    if first_own is not None:
        width = out.shape[1] // num_chosen
        launch(
            expert_outputs_kernel, (space.places.shape[0], triton.cdiv(width, _BLOCK)), space.result, space.places, out,
            row_stride(space.result), width, BLOCK=_BLOCK, num_warps=4, pdl=pdl,
        )  # fmt: skip
        return
    _add(space.result, space.places, factors, out, weighs=not options.weigh_input, pdl=pdl)


def mix(x: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, *, weighs: bool) -> None:
    """out[t] = the sum of the outputs of the experts of row t, x [T, k * D], as operator MixExperts says; it rounds as
    `mixture` does. weighs: by factors f32 [T, k]."""
    _add(x.view(-1, out.shape[1]), None, factors, out, weighs=weighs)


def _add(
    result: torch.Tensor, places: torch.Tensor | None, factors: torch.Tensor, out: torch.Tensor,
    *, weighs: bool, pdl: bool = False,
) -> None:  # fmt: skip
    width = out.shape[1]
    launch(
        expert_sum_kernel, (out.shape[0], triton.cdiv(width, _BLOCK)), result, factors if places is None else places,
        factors, out, row_stride(result), row_stride(out), width, CHOSEN=factors.shape[1], WEIGH=weighs,
        PLACED=places is not None, BLOCK=_BLOCK, num_warps=4, pdl=pdl,
    )  # fmt: skip


def _activate(space: ExpertWorkspace, options: ExpertOptions, pdl: bool) -> None:
    launch(
        expert_activation_kernel, (space.order.shape[0], triton.cdiv(options.width, _BLOCK)), space.opened, space.inner,
        space.order, row_stride(space.opened), row_stride(space.inner), options.width, options.limit or 0.0,
        options.alpha, options.up_offset, KIND=ACTIVATIONS[options.kind], SILU=options.kind == "silu",
        GATED=options.is_gated, LIMIT=options.limit is not None, BLOCK=_BLOCK, num_warps=4, pdl=pdl,
    )  # fmt: skip


def expert_tile(weight: Matrix, workspace: ExpertWorkspace) -> LinearTile:
    """Returns the tile of a product with the experts' matrices; it fits the shared memory of every architecture."""
    if isinstance(weight, PackedQuantized):
        return LinearTile(64, max(16, weight.unit * weight.bits // 32), 4, 2)
    return LinearTile(64, 64 if weight.dtype.itemsize == 2 else 32, 4, 3 if workspace.tile_rows < 64 else 2)
