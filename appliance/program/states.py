"""Recurrent states: what a block keeps of a sequence whose size does not grow, and the operators that carry it on.

States lie in slots, numbered alike for all states of a program. A step says for each piece of a sequence in which slot
its state is, and in which it is to be left (kernels.interface.StatePieces); a sequence begins with zeros.
"""

import math

import msgspec

from appliance.program.record import ActivationKind, Record
from appliance.program.slots import Span
from appliance.program.work import Forms, OperatorWork


class StateShape(msgspec.Struct, frozen=True):
    """The f32 array that a block keeps of each sequence."""

    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return 4 * math.prod(self.shape)


def _work(label: str, shape: tuple[int, ...], row_operations: int) -> OperatorWork:
    """Returns the work of an operator that reads and writes a state of each sequence."""
    return OperatorWork(label, state_bytes=2 * StateShape(shape).size_bytes, row_operations=row_operations)


class ShortConv(Record, frozen=True):
    """out[t] = kind(bias + sum over j < K of weight[:, j] * x[t - K + 1 + j]): each column's last K inputs, the latest
    weighted last; before a sequence's first token they are zero.

    x, out: [T, C]; they may be the same span. weight: f32 [C * K], one column after the other. bias: f32 [C]. State
    number `state` is [K - 1, C], the latest inputs, the last of them last.
    """

    doc = "short causal convolution of each column"
    vectors = ("weight", "bias")

    x: Span
    weight: str
    out: Span
    state: int
    kernel_size: int
    bias: str | None = None
    kind: ActivationKind | None = None

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.kernel_size - 1, self.x.width)

    def work(self, forms: Forms) -> OperatorWork:
        return _work(self.label(), self.state_shape, 2 * self.kernel_size * self.x.width)


class GatedDelta(Record, frozen=True):
    """The gated delta rule: a memory S [K, V] of each value head, whose values for the token's key are corrected.

    For each token, with q, k, v, decay a and beta b of the head:
        S = exp(g) * S                              g = -exp(a_log) * softplus(a + dt_bias)
        S = S + k (v - S^T k)^T * beta_scale * sigmoid(b)
        out = S^T q / sqrt(K)
    q and k are first divided by sqrt(sum of squares + 1e-6), each head by its own. Value head h reads key head
    h // (num_value_heads / num_key_heads). by_channel: each row of S decays by itself (Kimi Delta Attention); a_log is
    one number a head all the same.

    q, k: [T, num_key_heads * K]. v, out: [T, num_value_heads * V]; they may be the same span. beta: [T,
    num_value_heads]. decay and the vector dt_bias: num_value_heads wide, or num_value_heads * K by channel. a_log: f32
    [num_value_heads]. State number `state` is [num_value_heads, K, V].

    Sources: Gated Delta Networks (arXiv 2412.06464), Kimi Linear (arXiv 2510.26692); the formulas are those of
    transformers' torch_recurrent_gated_delta_rule (qwen3_next, olmo_hybrid: beta_scale 2) and
    recurrent_kimi_delta_attention (kimi_linear).
    """

    doc = "gated delta rule over a state of each head"
    vectors = ("a_log", "dt_bias")

    q: Span
    k: Span
    v: Span
    decay: Span
    beta: Span
    a_log: str
    dt_bias: str
    out: Span
    state: int
    num_key_heads: int
    num_value_heads: int
    by_channel: bool = False
    beta_scale: float = 1.0

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.num_value_heads, self.k.width // self.num_key_heads, self.v.width // self.num_value_heads)

    def work(self, forms: Forms) -> OperatorWork:
        """A token decays the state, reads it for its key and for its query, and adds to it."""
        return _work(self.label(), self.state_shape, 7 * math.prod(self.state_shape))


class StateSpace(Record, frozen=True):
    """The selective state space model: a state S [N, P] of each head, which decays and takes in b x^T.

    For each token, with x [P], dt (a number) of the head and b, c [N] of its group:
        dt = clamp(softplus(dt + dt_bias), dt_min, dt_max)
        S = exp(-exp(a_log) * dt) * S + dt * b x^T
        out = S^T c + d * x
    Head h reads group h // (num_heads / num_groups). by_state: each row of S decays by itself, a_log is
    [num_heads * N], one head after the other, and a head is one channel, P = 1 (Mamba 1).

    x, out: [T, num_heads * P]; they may be the same span. b, c: [T, num_groups * N]. dt: [T, num_heads]. a_log: f32
    [num_heads] unless by_state; d, dt_bias: f32 [num_heads]. State number `state` is [num_heads, N, P], or by_state
    [N, num_heads], so that neighbours in memory are decayed together.

    Sources: Mamba (arXiv 2312.00752), Mamba 2 (arXiv 2405.21060); the formulas are those of transformers'
    mamba_selective_scan (mamba, jamba, falcon_mamba) and mamba2_chunk_scan (mamba2, bamba, granitemoehybrid,
    nemotron_h, falcon_h1, zamba2). Its single-token update (mamba2_selective_state_update) leaves the clamp out; here
    every token has it, as in mamba_ssm's kernels, so that a token's result does not depend on how it was run.
    """

    doc = "selective state space model over a state of each head"
    vectors = ("a_log", "d", "dt_bias")

    x: Span
    b: Span
    c: Span
    dt: Span
    a_log: str
    d: str
    out: Span
    state: int
    num_heads: int
    num_groups: int = 1
    dt_bias: str | None = None
    dt_min: float = 0.0
    dt_max: float = math.inf
    by_state: bool = False

    @property
    def state_shape(self) -> tuple[int, ...]:
        state_size = self.b.width // self.num_groups
        if self.by_state:
            return (state_size, self.num_heads)
        return (self.num_heads, state_size, self.x.width // self.num_heads)

    def work(self, forms: Forms) -> OperatorWork:
        """A token decays the state, adds to it, and reads it."""
        return _work(self.label(), self.state_shape, 5 * math.prod(self.state_shape))


class RgLru(Record, frozen=True):
    """The real-gated linear recurrent unit (Griffin, arXiv 2402.19427): a number h of each column.

    For each token, with x, gates i and r of the column:
        log a = -8 * softplus(decay) * sigmoid(r + recurrence_bias)
        h = a * h + sqrt(1 - a^2) * sigmoid(i + input_bias) * x      without the root at position 0
        out = h

    x, input_gate, recurrence_gate, out: [T, W]; x and out may be the same span. decay, input_bias, recurrence_bias:
    f32 [W]. State number `state` is [W]. The formulas are those of transformers' recurrent_gemma.
    """

    doc = "real-gated linear recurrent unit of each column"
    vectors = ("decay", "input_bias", "recurrence_bias")

    x: Span
    input_gate: Span
    recurrence_gate: Span
    decay: str
    input_bias: str
    recurrence_bias: str
    out: Span
    state: int

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.x.width,)

    def work(self, forms: Forms) -> OperatorWork:
        return _work(self.label(), self.state_shape, 6 * self.x.width)
