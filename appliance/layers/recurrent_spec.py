"""The mixers that keep a state of a sequence, as data: parts of a DecoderSpec (layers/spec.py)."""

import math

import msgspec

from appliance.layers.norm_spec import NormSpec
from appliance.program.record import ActivationKind


class ShortConvSpec(msgspec.Struct, frozen=True):
    """A gated short convolution (LFM2): out = c * conv(b * x), each of D columns by itself over its last `kernel_size`
    tokens. Its state is the latest inputs.

    Weights: `conv.b`, `conv.c` and `conv.x`, whose biases are `in_bias`; `conv.weight` [D * K] and with `conv_bias`
    `conv.weight.bias`; `conv.o`.
    """

    kernel_size: int
    conv_bias: bool = False
    in_bias: bool = False
    out_bias: bool = False


class GatedDeltaSpec(msgspec.Struct, frozen=True):
    """A gated delta rule (program.states.GatedDelta) after a short convolution of queries, keys and values with silu;
    then a norm of each head, times the activation `gate` of z.

    decay_rank: decays by channel, through a matrix of this rank (Kimi Delta Attention); None for one decay a head.
    gate_rank: z goes through a matrix of this rank too. tiled: value head h reads key head h % num_key_heads, in place
    of neighbouring value heads that share one.

    Weights: `delta.q`, `delta.k`, `delta.v`, `delta.z`, `delta.decay`, `delta.beta`, with a rank `delta.decay.low` or
    `delta.z.low` before them; `delta.conv.q`, `delta.conv.k`, `delta.conv.v` [columns * K]; `delta.a_log`,
    `delta.dt_bias`, `delta.norm` [value_dim], `delta.o`. Of tiled heads `delta.a_log.<n>` and `delta.dt_bias.<n>`, one
    for each tile of num_key_heads.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    norm: NormSpec
    gate: ActivationKind = "silu"
    beta_scale: float = 1.0
    decay_rank: int | None = None
    gate_rank: int | None = None
    out_bias: bool = False
    tiled: bool = False

    @property
    def num_tiles(self) -> int:
        """How often the key heads are gone through, each time by neighbouring value heads."""
        return self.num_value_heads // max(self.num_key_heads, 1) if self.tiled else 1

    @property
    def key_width(self) -> int:
        """The columns of q, and of k."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """The columns of v, z and the output."""
        return self.num_value_heads * self.value_dim


class StateSpaceSpec(msgspec.Struct, frozen=True):
    """A selective state space model (program.states.StateSpace) after a short convolution, gated by silu(z).

    The convolution has the activation `activation`. With `time_step_rank` it is Mamba 1: b, c and the low-rank dt are
    projected from the convolution's output, each with `selection_norm` if there is one, and heads are single channels
    with a decay of each state. Without it (Mamba 2), the convolution goes over x, b and c. norm: of each group's
    columns, after the gate or before it. multipliers: of the projections z, x, b, c and dt of Mamba 2.

    Weights: `ssm.z`, `ssm.x`, `ssm.b`, `ssm.c`, `ssm.dt`, with a rank `ssm.dt.low`, with biases `in_bias` (not those of
    a rank's b, c and dt); `ssm.conv` and with `conv_bias` `ssm.conv.bias`; `ssm.a_log`, `ssm.d`, `ssm.dt_bias`,
    `ssm.norm`, `ssm.b_norm`, `ssm.c_norm`, `ssm.dt_norm`, `ssm.o`.
    """

    num_heads: int
    head_dim: int
    state_size: int
    kernel_size: int
    num_groups: int = 1
    activation: ActivationKind = "silu"
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    time_step_rank: int | None = None
    selection_norm: NormSpec | None = None
    norm: NormSpec | None = None
    norm_before_gate: bool = False
    dt_min: float = 0.0
    dt_max: float = math.inf
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def width(self) -> int:
        """The columns of x, z and the output."""
        return self.num_heads * self.head_dim


class RgLruSpec(msgspec.Struct, frozen=True):
    """A real-gated linear recurrent unit (program.states.RgLru) after a short convolution, times the activation of y.

    The gates of each head's columns are linear maps of these columns.

    Weights: `lru.x`, `lru.y` and `lru.o`, with biases; `lru.conv` [width * K], `lru.conv.bias`; of each head
    `lru.input_gate.<head>` and `lru.recurrence_gate.<head>` [width / num_heads, width / num_heads];
    `lru.input_gate.bias`, `lru.recurrence_gate.bias` and `lru.decay` [width].
    """

    width: int
    num_heads: int
    kernel_size: int
    activation: ActivationKind


RecurrentSpec = ShortConvSpec | GatedDeltaSpec | StateSpaceSpec | RgLruSpec
