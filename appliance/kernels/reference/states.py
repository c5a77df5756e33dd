"""Recurrent states on torch tensors: how a step carries them on, and the operators that do."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional

from appliance.kernels.interface import StatePieces
from appliance.kernels.reference.activations import activate
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateShape, StateSpace

StateSlots = list[torch.Tensor]  # of each state: [slots, *shape]
Weights = Mapping[str, torch.Tensor]


def state_slots(states: Sequence[StateShape], num_slots: int) -> StateSlots:
    """Allocates the slots. They hold NaN, so that tests find a state that is read before it was written."""
    return [torch.full((num_slots, *state.shape), torch.nan) for state in states]


def carry(slots: torch.Tensor, pieces: StatePieces, run: Callable[[slice, torch.Tensor], torch.Tensor]) -> None:
    """Calls `run` for each piece, with its tokens and its state at their begin; it returns the state at their end."""
    ends = pieces.start.tolist()
    for piece, (source, target) in enumerate(zip(pieces.source.tolist(), pieces.target.tolist(), strict=True)):
        before = torch.zeros_like(slots[0]) if source < 0 else slots[source].clone()
        slots[target] = run(slice(ends[piece], ends[piece + 1]), before)


def short_conv(
    op: ShortConv, x: torch.Tensor, weights: Weights, slots: torch.Tensor, pieces: StatePieces
) -> torch.Tensor:
    """Returns the output of ShortConv for x [T, C]."""
    taps = weights[op.weight].reshape(-1, op.kernel_size)  # [C, K]
    out = torch.empty_like(x)

    def run(tokens: slice, before: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat((before, x[tokens]))  # [K - 1 + T, C]
        if tokens.stop > tokens.start:
            y = (inputs.unfold(0, op.kernel_size, 1) * taps).sum(-1)
            y = y if op.bias is None else y + weights[op.bias].flatten()
            out[tokens] = y if op.kind is None else activate(y, op.kind)
        return inputs[len(inputs) - op.kernel_size + 1 :]

    carry(slots, pieces, run)
    return out


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.reshape(len(x), heads, x.shape[1] // heads)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gated_delta(
    op: GatedDelta, spans: Mapping[str, torch.Tensor], weights: Weights, slots: torch.Tensor, pieces: StatePieces
) -> torch.Tensor:
    """Returns the output of GatedDelta; `spans` are its inputs by their fields."""
    heads, key_dim, _ = op.state_shape
    repeats = heads // op.num_key_heads
    q, k = (_unit(_heads(spans[name], op.num_key_heads)).repeat_interleave(repeats, 1) for name in "qk")
    q = q * key_dim**-0.5
    v = _heads(spans["v"], heads)
    gain = op.beta_scale * torch.sigmoid(spans["beta"])  # [T, H]
    rate = weights[op.a_log].reshape(heads, 1).exp()
    drive = _heads(spans["decay"] + weights[op.dt_bias].flatten(), heads)  # [T, H, 1 or K]
    decay = (-rate * functional.softplus(drive)).exp()[..., None]
    out = torch.empty_like(v)

    def run(tokens: slice, state: torch.Tensor) -> torch.Tensor:  # [H, K, V]
        for t in range(tokens.start, tokens.stop):
            state = state * decay[t]
            found = (state * k[t][..., None]).sum(1)
            state = state + k[t][..., None] * ((v[t] - found) * gain[t][:, None])[:, None, :]
            out[t] = (state * q[t][..., None]).sum(1)
        return state

    carry(slots, pieces, run)
    return out.flatten(1)


def state_space(
    op: StateSpace, spans: Mapping[str, torch.Tensor], weights: Weights, slots: torch.Tensor, pieces: StatePieces
) -> torch.Tensor:
    """Returns the output of StateSpace; `spans` are its inputs by their fields."""
    heads = op.num_heads
    b, c = (
        _heads(spans[name], op.num_groups).repeat_interleave(heads // op.num_groups, 1) for name in "bc"
    )  # [T, H, N]
    x = _heads(spans["x"], heads)
    dt = spans["dt"] if op.dt_bias is None else spans["dt"] + weights[op.dt_bias].flatten()
    dt = functional.softplus(dt).clamp(op.dt_min, op.dt_max)[..., None]  # [T, H, 1]
    decay = (-weights[op.a_log].reshape(heads, -1).exp() * dt).exp()[..., None]  # [T, H, 1 or N, 1]
    skip = weights[op.d].reshape(heads, 1)
    out = torch.empty_like(x)

    def run(tokens: slice, state: torch.Tensor) -> torch.Tensor:
        state = state.T[..., None] if op.by_state else state  # [H, N, P]
        for t in range(tokens.start, tokens.stop):
            state = state * decay[t] + b[t][..., None] * (dt[t] * x[t])[:, None, :]
            out[t] = (state * c[t][..., None]).sum(1) + skip * x[t]
        return state[..., 0].T if op.by_state else state

    carry(slots, pieces, run)
    return out.flatten(1)


def rg_lru(
    op: RgLru,
    spans: Mapping[str, torch.Tensor],
    begins: torch.Tensor,
    weights: Weights,
    slots: torch.Tensor,
    pieces: StatePieces,
) -> torch.Tensor:
    """Returns the output of RgLru; `spans` are its inputs by their fields. begins: [T], the tokens at position 0."""
    recurrence = torch.sigmoid(spans["recurrence_gate"] + weights[op.recurrence_bias].flatten())
    decay = torch.exp(-8.0 * functional.softplus(weights[op.decay].flatten()) * recurrence)
    root = torch.where(begins[:, None], 1.0, (1.0 - decay.square()).sqrt())
    taken = root * torch.sigmoid(spans["input_gate"] + weights[op.input_bias].flatten()) * spans["x"]
    out = torch.empty_like(taken)

    def run(tokens: slice, state: torch.Tensor) -> torch.Tensor:
        for t in range(tokens.start, tokens.stop):
            state = decay[t] * state + taken[t]
            out[t] = state
        return state

    carry(slots, pieces, run)
    return out
