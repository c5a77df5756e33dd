"""Operators with recurrent states by Triton's kernels."""

from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.gpu.triton import column_states, states
from appliance.kernels.gpu.triton.states import StateTensors
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace


def _states(number: int, step: DeviceStep) -> StateTensors:
    arrays = step.arrays
    assert arrays.pieces is not None, "a program with states gets pieces"
    assert arrays.piece_first is not None, "pieces are those of sequences"
    return StateTensors(step.bound.states[number], arrays.piece_first, arrays.pieces)


def gated_delta(op: GatedDelta, step: DeviceStep) -> None:
    q, k, v, decay, beta, out = (step.span(each) for each in (op.q, op.k, op.v, op.decay, op.beta, op.out))
    vectors = step.vector(op.a_log), step.vector(op.dt_bias)
    states.gated_delta(q, k, v, decay, beta, *vectors, out, _states(op.state, step), op.beta_scale)


def state_space(op: StateSpace, step: DeviceStep) -> None:
    x, b, c, dt, out = (step.span(each) for each in (op.x, op.b, op.c, op.dt, op.out))
    bias = None if op.dt_bias is None else step.vector(op.dt_bias)
    vectors = step.vector(op.a_log), step.vector(op.d), bias
    states.state_space(x, b, c, dt, *vectors, out, _states(op.state, step), op.num_groups, (op.dt_min, op.dt_max))


def short_conv(op: ShortConv, step: DeviceStep) -> None:
    bias = None if op.bias is None else step.vector(op.bias)
    kept = _states(op.state, step)
    column_states.short_conv(step.span(op.x), step.vector(op.weight), bias, step.span(op.out), kept, op.kind)


def rg_lru(op: RgLru, step: DeviceStep) -> None:
    x, input_gate, recurrence_gate, out = (
        step.span(each) for each in (op.x, op.input_gate, op.recurrence_gate, op.out)
    )
    vectors = step.vector(op.decay), step.vector(op.input_bias), step.vector(op.recurrence_bias)
    kept = _states(op.state, step)
    column_states.rg_lru(x, input_gate, recurrence_gate, step.arrays.positions, *vectors, out, kept)
