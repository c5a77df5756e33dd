"""Recurrent states: the gated delta rule and selective state spaces; operators GatedDelta and StateSpace.

A program carries a part of one sequence's state through its tokens of a step, in registers. Formulas are those of
appliance.program.states, in f32. Sums over a state's rows do not depend on other sequences or on where a chunk ends.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from appliance.kernels.gpu.triton.launch import after_previous, launch, power_of_two, row_stride

_STATE_TILE = 4096  # numbers of a state that one program holds


class StateTensors(NamedTuple):
    """Where kernels find states and leave them. slots: f32 [slots, *shape], contiguous, of one state of the program.

    first: int32 [S + 1], as in StatePieces. pieces: int32 [P, 4], of each piece its first token, the one behind its
    last, source and target.
    """

    slots: torch.Tensor
    first: torch.Tensor
    pieces: torch.Tensor


@triton.jit
def piece_of(pieces, number):
    """Returns a piece's first token and the one behind its last, and its source and target."""
    at = pieces + number * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2).to(tl.int64), tl.load(at + 3).to(tl.int64)


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def unit(x):
    """x f32 [columns] -> x divided by its length."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def gated_delta_kernel(
    q, k, v, decay, beta, a_log, dt_bias, out, states, first, pieces,
    q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride, slot_stride, beta_scale, scale,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BY_CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a sequence, a value head, and COLUMNS columns of its state."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < KEY_DIM, column < VALUE_DIM
    is_live = is_row[:, None] & is_column[None, :]
    state_at = states + head * KEY_DIM * VALUE_DIM + row[:, None] * VALUE_DIM + column[None, :]
    key_at, value_at = head // GROUP * KEY_DIM + row, head * VALUE_DIM + column
    of_decay = head * KEY_DIM + row if BY_CHANNEL else head + 0 * row
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + of_decay, mask=is_row, other=0.0).to(tl.float32)
    after_previous(PDL)
    for number in tl.range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        start, end, source, target = piece_of(pieces, number)
        state = tl.load(state_at + source * slot_stride, mask=is_live & (source >= 0), other=0.0)
        for token in tl.range(start, end):
            at = start.to(tl.int64) + (token - start)
            query = unit(tl.load(q + at * q_stride + key_at, mask=is_row, other=0.0).to(tl.float32)) * scale
            key = unit(tl.load(k + at * k_stride + key_at, mask=is_row, other=0.0).to(tl.float32))
            value = tl.load(v + at * v_stride + value_at, mask=is_column, other=0.0).to(tl.float32)
            drive = tl.load(decay + at * decay_stride + of_decay, mask=is_row, other=0.0).to(tl.float32)
            gain = beta_scale * tl.sigmoid(tl.load(beta + at * beta_stride + head).to(tl.float32))
            state *= tl.exp(-rate * softplus(drive + bias))[:, None]
            found = tl.sum(state * key[:, None], 0)
            state += key[:, None] * ((value - found) * gain)[None, :]
            y = tl.sum(state * query[:, None], 0)
            tl.store(out + at * out_stride + value_at, y.to(out.dtype.element_ty), mask=is_column)
        tl.store(state_at + target * slot_stride, state, mask=is_live)
        tl.debug_barrier()  # the next piece may begin with it


@triton.jit
def state_space_kernel(
    x, b, c, dt, a_log, d, dt_bias, out, states, first, pieces,
    x_stride, b_stride, c_stride, dt_stride, out_stride, slot_stride, dt_min, dt_max, num_heads,
    GROUP: tl.constexpr, STATE_DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BY_STATE: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs: a sequence, and COLUMNS columns of a head's state; BY_STATE: COLUMNS heads, which have one each."""
    sequence = tl.program_id(0)
    row = tl.arange(0, ROWS)
    if BY_STATE:
        head = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column, value_at = head < num_heads, head
        state_at = row[:, None] * num_heads + head[None, :]
        of_state = head[None, :] * STATE_DIM + row[:, None]
        of_group = (head // GROUP * STATE_DIM)[None, :] + row[:, None]
    else:
        tiles: tl.constexpr = (HEAD_DIM + COLUMNS - 1) // COLUMNS
        column = tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS)
        head = tl.program_id(1) // tiles + 0 * column
        is_column, value_at = column < HEAD_DIM, head * HEAD_DIM + column
        state_at = (head * STATE_DIM * HEAD_DIM + column)[None, :] + row[:, None] * HEAD_DIM
        of_state = head[None, :]
        of_group = (tl.program_id(1) // tiles // GROUP * STATE_DIM + row)[:, None]
    is_live = (row < STATE_DIM)[:, None] & is_column[None, :]
    is_rate, is_group = is_column[None, :], (row < STATE_DIM)[:, None]
    if BY_STATE:
        is_rate, is_group = is_live, is_live
    rate = tl.exp(tl.load(a_log + of_state, mask=is_rate, other=0.0).to(tl.float32))
    skip = tl.load(d + head, mask=is_column, other=0.0).to(tl.float32)
    bias = 0.0 * skip
    if BIAS:
        bias = tl.load(dt_bias + head, mask=is_column, other=0.0).to(tl.float32)
    after_previous(PDL)
    for number in tl.range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        start, end, source, target = piece_of(pieces, number)
        state = tl.load(states + source * slot_stride + state_at, mask=is_live & (source >= 0), other=0.0)
        for token in tl.range(start, end):
            at = start.to(tl.int64) + (token - start)
            value = tl.load(x + at * x_stride + value_at, mask=is_column, other=0.0).to(tl.float32)
            step = tl.load(dt + at * dt_stride + head, mask=is_column, other=0.0).to(tl.float32)
            step = tl.minimum(tl.maximum(softplus(step + bias), dt_min), dt_max)
            taken = tl.load(b + at * b_stride + of_group, mask=is_group, other=0.0).to(tl.float32)
            given = tl.load(c + at * c_stride + of_group, mask=is_group, other=0.0).to(tl.float32)
            state = state * tl.exp(-rate * step[None, :]) + taken * (step * value)[None, :]
            y = tl.sum(state * given, 0) + skip * value
            tl.store(out + at * out_stride + value_at, y.to(out.dtype.element_ty), mask=is_column)
        tl.store(states + target * slot_stride + state_at, state, mask=is_live)
        tl.debug_barrier()  # the next piece may begin with it


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
    states: StateTensors,
    beta_scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """The gated delta rule as GatedDelta has it; spans and vectors are its fields of the same names, out may be v.

    by_channel is read from the width of `decay`.
    """
    heads, key_dim, value_dim = states.slots.shape[1:]
    rows, columns = _tile(key_dim, value_dim)
    launch(
        gated_delta_kernel, (states.first.shape[0] - 1, heads, triton.cdiv(value_dim, columns)), q, k, v, decay, beta,
        a_log, dt_bias, out, *states, row_stride(q), row_stride(k), row_stride(v), row_stride(decay), row_stride(beta),
        row_stride(out), states.slots.stride(0), beta_scale, key_dim**-0.5, GROUP=heads * key_dim // k.shape[1],
        KEY_DIM=key_dim, VALUE_DIM=value_dim, BY_CHANNEL=decay.shape[1] != heads, ROWS=rows, COLUMNS=columns,
        num_warps=4, pdl=pdl,
    )  # fmt: skip


def state_space(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor | None,
    out: torch.Tensor,
    states: StateTensors,
    num_groups: int = 1,
    limits: tuple[float, float] = (0.0, float("inf")),
    pdl: bool = False,
) -> None:
    """The selective state space model as StateSpace has it; spans and vectors are its fields of the same names, out may
    be x. limits: dt_min and dt_max. by_state is read from the state's shape."""
    by_state, heads = states.slots.dim() == 3, dt.shape[1]
    head_dim, state_dim = x.shape[1] // heads, b.shape[1] // num_groups
    rows, columns = _tile(state_dim, heads if by_state else head_dim)
    tiles = triton.cdiv(heads, columns) if by_state else heads * triton.cdiv(head_dim, columns)
    launch(
        state_space_kernel, (states.first.shape[0] - 1, tiles), x, b, c, dt, a_log, d,
        d if dt_bias is None else dt_bias, out, *states, row_stride(x), row_stride(b), row_stride(c),
        row_stride(dt), row_stride(out), states.slots.stride(0), *limits, heads, GROUP=heads // num_groups,
        STATE_DIM=state_dim, HEAD_DIM=head_dim, BY_STATE=by_state, BIAS=dt_bias is not None, ROWS=rows,
        COLUMNS=columns, num_warps=4, pdl=pdl,
    )  # fmt: skip


def _tile(num_rows: int, num_columns: int) -> tuple[int, int]:
    """Returns the padded rows of a state and the columns of a program: few, so that one sequence has many programs."""
    rows = power_of_two(num_rows)
    return rows, min(power_of_two(num_columns), max(1, _STATE_TILE // rows), 128)
