"""The operators: one frozen record each, which is the typed signature that every kernel set implements.

A model compiles to a StepProgram: a flat tuple of these records over numbered slots (activation buffers) and named
weights. A kernel set binds the program once and then runs a step in one call, so an operator costs no Python.

Extents: T tokens of the step, R rows whose logits are needed. Widths: D hidden, H query heads, G KV heads, d head size,
I intermediate, V vocabulary. Activations are f32.

A record is the whole declaration of an operator: its purpose (`doc`), the fields that name weights, whether it uses a
cache, and its work. Its number in the ABI is its place in `OPERATORS` (program/header.py writes the enumeration).
"""

import typing

import msgspec

from appliance.program.adapters import AdapterEmbed, AdapterExperts, AdapterLinear
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.caches import KvLayout, KvShape
from appliance.program.ranks import Gather, Meet
from appliance.program.record import ActivationKind, LearnedActivationKind, NormKind, Record
from appliance.program.routing import ChooseExperts, Experts, GatedAdd, MixExperts, PlaceExperts, SpreadExperts
from appliance.program.slots import Slot, Span
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateShape, StateSpace
from appliance.program.streams import CorrectStreams, GaussianTopK, MatchMagnitude, MixStreams
from appliance.program.work import ChunkReach, Forms, OperatorWork, Reach


class Embed(Record, frozen=True):
    """out[t] = table[token_ids[t]] * scale (+ position_table[positions[t] + position_offset]) (+
    type_table[token_types[t]]). type_table: f32 [num_types, D]; without token_types in a step, every type is 0.

    missing_row: the row of tokens beyond the table; None: it has all. num_tokens: the rows of the table; with 0, which
    leaves them open, several ranks have it whole. own: of a rank, the first token of its table and the one after its
    last; only the rows of these are written.

    given_scale: the factor, in place of `scale`, of an embedding that a step gives in place of a token's row of the
    table (StepInputs.embeds). None: a step may give none.
    """

    doc = "token (and position, and segment) embeddings"
    matrices = ("table", "position_table")
    vectors = ("type_table",)

    table: str
    out: Slot
    scale: float = 1.0
    position_table: str | None = None
    position_offset: int = 0
    type_table: str | None = None
    missing_row: int | None = None
    num_tokens: int = 0
    own: tuple[int, int] | None = None
    given_scale: float | None = None

    def work(self, forms: Forms) -> OperatorWork:
        return OperatorWork("embed", row_bytes=4 * self.out.width)


class RmsNorm(Record, frozen=True):
    """out = x / sqrt(mean(x^2) + eps) * weight, or without the weight if it is None. With `residual`: first
    residual += scale * x in place, and then the sum is normed."""

    doc = "RMS norm, with the residual sum"
    vectors = ("weight",)

    x: Slot
    weight: str | None
    out: Slot
    eps: float
    residual: Slot | None = None
    scale: float = 1.0


class LayerNorm(Record, frozen=True):
    """out = (x - mean) / sqrt(var + eps) * weight + bias; `weight`, `residual` and `scale` as in RmsNorm."""

    doc = "layer norm, with the residual sum"
    vectors = ("weight", "bias")

    x: Slot
    weight: str | None
    bias: str | None
    out: Slot
    eps: float
    residual: Slot | None = None
    scale: float = 1.0


class HeadNorm(Record, frozen=True):
    """Norm of each head of x [rows, num_heads * head_dim]; one head is a norm of the whole width.

    out: where the result goes, as wide as x; None for in place.

    kind: RMS, or layer norm, which takes the mean away first. weight and bias: [head_dim] for all heads, or
    [num_heads * head_dim] with `by_head`; None for none.
    """

    doc = "norm of each head"
    vectors = ("weight", "bias")

    x: Span
    weight: str | None
    num_heads: int
    head_dim: int
    eps: float
    kind: NormKind = "rms"
    bias: str | None = None
    by_head: bool = False
    out: Span | None = None


class Linear(Record, frozen=True):
    """out = x @ weight.T + bias; with `accumulate`, out += (...). Weight rows must equal out.width."""

    doc = "matrix product over the canonical layouts, with bias and activation"
    matrices = ("weight",)
    vectors = ("bias",)

    x: Span
    weight: str
    out: Span
    bias: str | None = None
    activation: ActivationKind | None = None
    accumulate: bool = False

    def work(self, forms: Forms) -> OperatorWork:
        size_bytes, layout = forms.weight(self.weight)
        return OperatorWork(
            label=f"linear {self.weight.rpartition('.')[2]}",
            unit=forms.unit(layout),
            kernel=forms.kernel(layout),
            weight_bytes=size_bytes,
            row_operations=2 * self.x.width * self.out.width,
            extent=self.x.slot.extent,
        )


class Activation(Record, frozen=True):
    """out = kind(x).

    "xielu" (arXiv 2411.13010) is p * x^2 + beta * x above zero, and n * (e^min(x, eps) - 1 - x) + beta * x else, where
    p = softplus(alpha_p) and n = beta + softplus(alpha_n). parameters: f32 [4], its alpha_p, alpha_n, beta and eps; no
    other kind has any.
    """

    doc = "an elementwise activation"
    vectors = ("parameters",)

    x: Slot
    out: Slot
    kind: ActivationKind | LearnedActivationKind
    parameters: str | None = None


class GatedActivation(Record, frozen=True):
    """out [rows, I] = kind(gate) * up, both spans [rows, I]; without a kind it is their product."""

    doc = "activation of the gate times the other half"

    gate: Span
    up: Span
    out: Slot
    kind: ActivationKind | None


class Rope(Record, frozen=True):
    """Rotates the first `rotary_dim` columns of each head in place by the angles of table row positions[t].

    table: f32 [max_position, rotary_dim], cosines in the first half of a row, sines in the second.
    Pairs are (i, i + rotary_dim/2), or (2i, 2i + 1) when `interleaved`.
    """

    doc = "rotary positions"
    vectors = ("table",)

    x: Span
    table: str
    num_heads: int
    head_dim: int
    rotary_dim: int
    interleaved: bool = False


class KvWrite(Record, frozen=True):
    """Stores k [T, G * d] and v [T, G * e] in cache number `cache`, at slot_mapping[t] of its group (negative: skip the
    token). v: None if the cache's values are columns of its keys. value_dim: e; None for d."""

    doc = "store keys and values in the paged cache"
    touches_cache = True

    k: Span
    v: Span | None
    cache: int
    num_kv_heads: int
    head_dim: int
    value_dim: int | None = None


class PagedAttention(Record, frozen=True):
    """Causal attention of q [T, H * d] over cache number `cache`; prefill, chunks and decode in one batch. out
    [T, H * e].

    window: a query at position p sees keys p - window + 1 .. p. chunk: it sees keys floor(p / chunk) * chunk .. p.
    soft_cap: scores become cap * tanh(scores / cap). slopes: head h adds slopes[h] * (k - p) to the score of the key at
    k (ALiBi, Press et al. 2021). sinks: f32 [H], the logit of one more key, whose value is zero. value_dim: e; None for
    d. values_in_keys: as in KvShape.
    """

    doc = "attention over the paged cache; prefill, chunks and decode in one batch"
    vectors = ("sinks",)
    touches_cache = True

    q: Span
    out: Slot
    cache: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    sinks: str | None = None
    slopes: tuple[float, ...] | None = None
    value_dim: int | None = None
    values_in_keys: bool = False

    @property
    def value_width(self) -> int:
        """The columns of a head's value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    def work(self, forms: Forms) -> OperatorWork:
        reach: Reach = ChunkReach(self.chunk) if self.chunk is not None else self.window
        label = "attention in a chunk" if self.chunk is not None else "attention in a window"
        stored = self.head_dim + (0 if self.values_in_keys else self.value_width)
        return OperatorWork(
            label="attention" if reach is None else label,
            unit="f32" if forms.kv_dtype in ("f32", "f16") else "bf16",
            kernel="attention",
            key_bytes=self.num_kv_heads * forms.kv_bytes(stored, 1 if self.values_in_keys else 2),
            visit_operations=2 * self.num_heads * (self.head_dim + self.value_width),
            reach=reach,
        )


class WholeAttention(Record, frozen=True):
    """Attention among the tokens of a step, which holds each sequence whole; nothing is kept.

    A query at i sees keys from i - before to i + after; None is all of them. bias: f32 [H, 2 * max_model_len - 1],
    added to the scores of head h: that of key j is bias[h, j - i + max_model_len - 1]. A row rounds alike in any batch.
    """

    doc = "attention among the tokens of whole sequences, without a cache"
    vectors = ("bias",)

    q: Span
    k: Span
    v: Span
    out: Slot
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    before: int | None = None
    after: int | None = None
    bias: str | None = None

    def work(self, forms: Forms) -> OperatorWork:
        window = None if self.before is None or self.after is None else self.before + self.after + 1
        return OperatorWork(
            label="attention" if window is None else "attention in a window",
            visit_operations=4 * self.num_heads * self.head_dim,
            reach=window,
        )


class Add(Record, frozen=True):
    """out += x."""

    doc = "sum of two activations"

    x: Slot
    out: Slot


class Copy(Record, frozen=True):
    """out = x. Spans of one slot do not overlap."""

    doc = "copy of an activation"

    x: Span
    out: Span


class GatherRows(Record, frozen=True):
    """out [R, D] = x[sampled_rows]."""

    doc = "pick the rows whose logits are wanted"

    x: Slot
    out: Slot


class MeanRows(Record, frozen=True):
    """out [R, D]: out[r] = the mean of x over all tokens of the sequence in which sampled_rows[r] is."""

    doc = "mean over the tokens of a sequence"

    x: Slot
    out: Slot


class SoftCap(Record, frozen=True):
    """x = cap * tanh(x / cap) in place."""

    doc = "tanh cap of logits"

    x: Slot
    cap: float


class Scale(Record, frozen=True):
    """x *= factor in place."""

    doc = "multiply with a constant"

    x: Span
    factor: float


class ScaleByWeight(Record, frozen=True):
    """out = x * weight. weight: f32 [width], a factor of each column, or [1] with `is_one`. out may be x."""

    doc = "multiply with a weight of each column"
    vectors = ("weight",)

    x: Slot
    weight: str
    out: Slot
    is_one: bool = False


Operator = (
    Embed | RmsNorm | LayerNorm | HeadNorm | Linear | Activation | GatedActivation | Rope | KvWrite | PagedAttention
    | Add | GatherRows | SoftCap | ChooseExperts | Experts | GatedAdd | ScaleByPosition | HeadLinear
    | ShortConv | GatedDelta | StateSpace | Scale | WholeAttention | MeanRows
    | ScaleByWeight | GaussianTopK | MixStreams | CorrectStreams | MatchMagnitude | Copy | RgLru
    | AdapterLinear | AdapterEmbed | AdapterExperts | Gather | Meet | MixExperts | PlaceExperts | SpreadExperts
)  # fmt: skip
OPERATORS: tuple[type[Operator], ...] = typing.get_args(Operator)  # by their number in the ABI; new ones come last


class StepProgram(msgspec.Struct, frozen=True):
    """The operators of a model's step. `logits` is the f32 [R, V] slot that the last operators fill; operators refer to
    `caches` and `states` by number.

    kept: a slot that can be read after a step, like the logits. given: an f32 slot of tokens that is filled before it.
    shared: of the program of one of several ranks, the slots of which each rank writes columns of its own. layout: of a
    stage, whose caches share tables as those of the whole program do.
    """

    operators: tuple[Operator, ...]
    slots: tuple[Slot, ...]
    logits: Slot
    caches: tuple[KvShape, ...] = ()
    states: tuple[StateShape, ...] = ()
    kept: Slot | None = None
    given: Slot | None = None
    shared: frozenset[int] = frozenset()
    layout: KvLayout | None = None

    def kv_layout(self) -> KvLayout:
        """Returns which caches share block tables."""
        return self.layout or KvLayout.of(self.caches)

    @property
    def state_bytes(self) -> int:
        """The bytes of all states of one sequence."""
        return sum(state.size_bytes for state in self.states)

    @property
    def embeds_width(self) -> int | None:
        """The columns of the embeddings that a step may give in place of tokens; None: it may give none."""
        taking = (op.out.width for op in self.operators if isinstance(op, Embed) and op.given_scale is not None)
        return next(taking, None)

    def matrices(self) -> frozenset[str]:
        """Returns the names of the weights that are kept in their planned layout."""
        return frozenset(name for op in self.operators for name in op.named(op.matrices))

    def vectors(self) -> frozenset[str]:
        """Returns the names of the weights and tables that are always f32."""
        return frozenset(name for op in self.operators for name in op.named(op.vectors))
