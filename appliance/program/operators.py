"""The operators: one frozen record each, which is the typed signature that every kernel set implements.

A model compiles to a StepProgram: a flat tuple of these records over numbered slots (activation buffers) and named
weights. A kernel set binds the program once and then runs it a step at a time, so a step costs no Python an operator.

Extents: T tokens of the step, R rows whose logits are wanted. Widths: D hidden, H query heads, G KV heads, d head size,
I intermediate, V vocabulary. Activations are f32 unless a slot says otherwise.
"""

import enum
from dataclasses import dataclass
from typing import Literal

from appliance.program.caches import KvShape

ActivationKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]


class Extent(enum.StrEnum):
    """How many rows of a slot are live in a step."""

    TOKENS = "tokens"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class Slot:
    """An activation buffer [rows(extent), width]. Binding decides which slots share memory (by liveness)."""

    index: int
    extent: Extent
    width: int


@dataclass(frozen=True, slots=True)
class Span:
    """Columns [start, start + width) of a slot: how fused projections are read and written in place."""

    slot: Slot
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = table[token_ids[t]] * scale (+ position_table[positions[t] + position_offset])."""

    table: str
    out: Slot
    scale: float = 1.0
    position_table: str | None = None
    position_offset: int = 0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x^2) + eps) * weight. With `residual`: residual += x first, in place, and
    the sum is normed."""

    x: Slot
    weight: str
    out: Slot
    eps: float
    residual: Slot | None = None


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """out = (x - mean) / sqrt(var + eps) * weight + bias; `residual` as in RmsNorm."""

    x: Slot
    weight: str
    bias: str | None
    out: Slot
    eps: float
    residual: Slot | None = None


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm of each head of x [rows, num_heads * head_dim] in place, one weight [head_dim] for all heads."""

    x: Span
    weight: str
    num_heads: int
    head_dim: int
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x @ weight.T + bias; with `accumulate`, out += (...). Weight rows must equal out.width."""

    x: Span
    weight: str
    out: Span
    bias: str | None = None
    activation: ActivationKind | None = None
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Activation:
    """out = kind(x)."""

    x: Slot
    out: Slot
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """out [rows, I] = kind(gate) * up, both spans [rows, I]."""

    gate: Span
    up: Span
    out: Slot
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates the first `rotary_dim` columns of each head in place by the angles of table row positions[t].

    table: f32 [max_position, rotary_dim], cosines in the first half of a row, sines in the second.
    Pairs are (i, i + rotary_dim/2), or (2i, 2i + 1) when `interleaved`.
    """

    x: Span
    table: str
    num_heads: int
    head_dim: int
    rotary_dim: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class KvWrite:
    """Stores k and v [T, G * d] in cache number `cache` at slot_mapping[t] (negative: skip the token)."""

    k: Span
    v: Span
    cache: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Causal attention of q [T, H * d] over cache number `cache`; prefill, chunks and decode in one batch.

    window: a query at position p sees keys p - window + 1 .. p. soft_cap: scores become cap * tanh(scores / cap).
    """

    q: Span
    out: Slot
    cache: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """out += x."""

    x: Slot
    out: Slot


@dataclass(frozen=True, slots=True)
class GatherRows:
    """out [R, D] = x[sampled_rows]."""

    x: Slot
    out: Slot


@dataclass(frozen=True, slots=True)
class SoftCap:
    """x = cap * tanh(x / cap) in place."""

    x: Slot
    cap: float


Operator = (
    Embed | RmsNorm | LayerNorm | HeadNorm | Linear | Activation | GatedActivation | Rope | KvWrite | PagedAttention
    | Add | GatherRows | SoftCap
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepProgram:
    """What a model does in one step. `logits` is the f32 [R, V] slot that the last operators fill; `caches` are what
    operators name by number."""

    operators: tuple[Operator, ...]
    slots: tuple[Slot, ...]
    logits: Slot
    caches: tuple[KvShape, ...] = ()
