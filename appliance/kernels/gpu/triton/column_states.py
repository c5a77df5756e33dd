"""Recurrent states of each column by itself: operators ShortConv and RgLru."""

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.activation import ACTIVATIONS, activate
from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride
from appliance.kernels.gpu.triton.states import StateTensors, piece_of, softplus
from appliance.program.record import ActivationKind

_COLUMNS = 128  # of a program


@triton.jit
def short_conv_kernel(
    x, weight, bias, out, states, first, pieces, x_stride, out_stride, slot_stride, width,
    TAPS: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a sequence, and COLUMNS columns. The last TAPS inputs lie in a ring: that of token t of a piece in row
    t % TAPS, so an input is held once and none is moved."""
    sequence = tl.program_id(0)
    row, column = tl.arange(0, ROWS)[:, None], (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    is_column = column < width
    of_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.zeros([COLUMNS], tl.float32)
    if BIAS:
        shift = tl.load(bias + of_column, mask=of_column < width, other=0.0).to(tl.float32)
    after_previous(PDL)
    for number in tl.range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        start, end, source, target = piece_of(pieces, number)
        is_kept = is_column & (row > 0) & (row < TAPS)  # row r holds the input of time r - TAPS, before the piece
        place = (row - 1) * width + column
        ring = tl.load(states + source * slot_stride + place, mask=is_kept & (source >= 0), other=0.0)
        for token in tl.range(start, end):
            at = start.to(tl.int64) + (token - start)
            time = token - start
            new = tl.load(x + at * x_stride + column, mask=is_column, other=0.0).to(tl.float32)
            ring = tl.where(row == time % TAPS, new, ring)
            tap = (row + TAPS - (time + 1) % TAPS) % TAPS
            factor = tl.load(weight + column * TAPS + tap, mask=is_column & (row < TAPS), other=0.0)
            y = activate(tl.sum(ring * factor.to(tl.float32), 0) + shift, KIND)
            tl.store(out + at * out_stride + of_column, y.to(out.dtype.element_ty), mask=of_column < width)
        place = (row + TAPS - (end - start + 1) % TAPS) % TAPS
        is_kept = is_column & (row < TAPS) & (place < TAPS - 1)
        tl.store(states + target * slot_stride + place * width + column, ring, mask=is_kept)
        tl.debug_barrier()  # the next piece may begin with it


@triton.jit
def rg_lru_kernel(
    x, input_gate, recurrence_gate, positions, decay, input_bias, recurrence_bias, out, states, first, pieces,
    x_stride, input_stride, recurrence_stride, out_stride, slot_stride, width,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a sequence, and COLUMNS columns."""
    sequence = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    rate = -8.0 * softplus(tl.load(decay + column, mask=is_column, other=0.0).to(tl.float32))
    of_input = tl.load(input_bias + column, mask=is_column, other=0.0).to(tl.float32)
    of_recurrence = tl.load(recurrence_bias + column, mask=is_column, other=0.0).to(tl.float32)
    after_previous(PDL)
    for number in tl.range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        start, end, source, target = piece_of(pieces, number)
        state = tl.load(states + source * slot_stride + column, mask=is_column & (source >= 0), other=0.0)
        for token in tl.range(start, end):
            at = start.to(tl.int64) + (token - start)
            value = tl.load(x + at * x_stride + column, mask=is_column, other=0.0).to(tl.float32)
            opened = tl.load(input_gate + at * input_stride + column, mask=is_column, other=0.0).to(tl.float32)
            kept = tl.load(recurrence_gate + at * recurrence_stride + column, mask=is_column, other=0.0).to(tl.float32)
            fade = tl.exp(rate * tl.sigmoid(kept + of_recurrence))
            root = tl.where(tl.load(positions + token) == 0, 1.0, tl.sqrt(1.0 - fade * fade))
            state = fade * state + root * tl.sigmoid(opened + of_input) * value
            tl.store(out + at * out_stride + column, state.to(out.dtype.element_ty), mask=is_column)
        tl.store(states + target * slot_stride + column, state, mask=is_column)
        tl.debug_barrier()  # the next piece may begin with it


def short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    states: StateTensors,
    kind: ActivationKind | None = None,
    pdl: bool = False,
) -> None:
    """The short convolution as ShortConv has it; spans and vectors are its fields of the same names, out may be x."""
    taps, width = states.slots.shape[1] + 1, x.shape[1]
    columns = min(_COLUMNS, power_of_two(width))
    launch(
        short_conv_kernel, (states.first.shape[0] - 1, triton.cdiv(width, columns)), x, weight,
        weight if bias is None else bias, out, *states, row_stride(x), row_stride(out), states.slots.stride(0), width,
        TAPS=taps, KIND=ACTIVATIONS[kind], BIAS=bias is not None, ROWS=power_of_two(taps), COLUMNS=columns,
        num_warps=4, pdl=pdl,
    )  # fmt: skip


def rg_lru(
    x: torch.Tensor,
    input_gate: torch.Tensor,
    recurrence_gate: torch.Tensor,
    positions: torch.Tensor,
    decay: torch.Tensor,
    input_bias: torch.Tensor,
    recurrence_bias: torch.Tensor,
    out: torch.Tensor,
    states: StateTensors,
    pdl: bool = False,
) -> None:
    """The recurrent unit as RgLru has it; spans and vectors are its fields of the same names, out may be x.

    positions: int32 [T].
    """
    width = x.shape[1]
    columns = min(_COLUMNS, power_of_two(width))
    launch(
        rg_lru_kernel, (states.first.shape[0] - 1, triton.cdiv(width, columns)), x, input_gate, recurrence_gate,
        positions, decay, input_bias, recurrence_bias, out, *states, row_stride(x), row_stride(input_gate),
        row_stride(recurrence_gate), row_stride(out), states.slots.stride(0), width, COLUMNS=columns, num_warps=4,
        pdl=pdl,
    )  # fmt: skip
