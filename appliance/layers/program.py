"""Builds a StepProgram: slots by role, operators in order, and the checkpoint parts of each named weight."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
from msgspec.structs import replace

from appliance.catalog.formats import TensorRole
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import PositionBias
from appliance.program.caches import KvShape
from appliance.program.operators import Linear, Operator, StepProgram
from appliance.program.record import ActivationKind
from appliance.program.slots import Extent, Slot, SlotType, Span, whole
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateShape, StateSpace


class WeightUse(msgspec.Struct, frozen=True):
    """A weight of the program: logical weights joined along rows, with the shape of each. A vector has one dimension; a
    negative number of rows means as many as the checkpoint has.

    role: the rule for its precision. An embedding is a table of the vocabulary, or the output head; `other` is always
    f32, such as norms, biases and position tables.
    """

    parts: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    role: TensorRole


class BiasUse(msgspec.Struct, frozen=True):
    """A table of position biases, and the weight that it is made from."""

    spec: PositionBias
    source: WeightUse


class CompiledDecoder(msgspec.Struct, frozen=True):
    """A program and the sources of its weights. `weights`, `ropes` and `biases` together name every weight that it
    reads."""

    program: StepProgram
    weights: Mapping[str, WeightUse]
    ropes: Mapping[str, RopeSpec]
    biases: Mapping[str, BiasUse] = {}

    def uses(self) -> Iterator[WeightUse]:
        """Yields what is read of the checkpoint, for the program itself and for tables."""
        yield from self.weights.values()
        yield from (use.source for use in self.biases.values())

    def roles(self) -> dict[str, TensorRole]:
        """Returns the role of each logical weight."""
        return {part: use.role for use in self.uses() for part in use.parts}


class Projection(msgspec.Struct, frozen=True):
    """One linear map: a logical weight [out_features, width of the input], and a bias named `<weight>.bias`."""

    weight: str
    out_features: int
    bias: bool = False
    role: TensorRole = "linear"


@dataclass(slots=True)
class ProgramBuilder:
    """Collects the slots, weights and operators that a decoder's blocks emit.

    A slot is identified by its role, extent and width, so that all layers share one. layouts: the layout in which each
    logical matrix will be stored; parts whose layouts are equal are joined into one Linear. layer_caches: the cache of
    keys and values by its layer, for layers that read another's.
    """

    layouts: Mapping[str, Hashable]
    operators: list[Operator] = field(default_factory=list)
    weights: dict[str, WeightUse] = field(default_factory=dict)
    ropes: dict[str, RopeSpec] = field(default_factory=dict)
    biases: dict[str, BiasUse] = field(default_factory=dict)
    caches: list[KvShape] = field(default_factory=list)
    layer_caches: dict[int, int] = field(default_factory=dict)
    states: list[StateShape] = field(default_factory=list)
    _slots: dict[tuple[str, int, Extent], Slot] = field(default_factory=dict)

    def slot(self, role: str, width: int, extent: Extent = Extent.TOKENS, dtype: SlotType = "f32") -> Slot:
        key = (role, width, extent)
        return self._slots.setdefault(key, Slot(len(self._slots), extent, width, dtype))

    def emit(self, *operators: Operator) -> None:
        self.operators.extend(operators)

    def weight(self, name: str, *shape: int, role: TensorRole = "other") -> str:
        self.weights[name] = WeightUse((name,), (shape,), role)
        return name

    def join(self, name: str, parts: Sequence[str], *shape: int, role: TensorRole = "other") -> str:
        """Declares a weight of parts of one shape, joined along rows; returns its name. They must be stored alike."""
        self.weights[name] = WeightUse(tuple(parts), (shape,) * len(parts), role)
        return name

    def concatenate(self, name: str, sizes: Mapping[str, int]) -> str:
        """Declares a vector of others, which have these sizes; returns its name."""
        self.weights[name] = WeightUse(tuple(sizes), tuple((size,) for size in sizes.values()), "other")
        return name

    def cache(self, shape: KvShape) -> int:
        """Declares a cache; returns its number, which operators name."""
        self.caches.append(shape)
        return len(self.caches) - 1

    def state(self, *shape: int) -> int:
        """Declares a state of a sequence; returns its number, which operators name."""
        self.states.append(StateShape(shape))
        return len(self.states) - 1

    def carry(self, operator: ShortConv | GatedDelta | StateSpace | RgLru) -> None:
        """Emits an operator that has a state of its own, with the number that the state gets."""
        self.emit(replace(operator, state=self.state(*operator.state_shape)))

    def rope_table(self, rope: RopeSpec) -> str:
        """Returns the name of the rotary table; layers with equal rotation share one."""
        for name, known in self.ropes.items():
            if known == rope:
                return name
        name = f"rope.{len(self.ropes)}"
        self.ropes[name] = rope
        return name

    def bias_table(self, spec: PositionBias, num_heads: int) -> str:
        """Returns the name of the table of position biases, which all layers share."""
        source = WeightUse(("position_bias",), ((spec.num_buckets, num_heads),), "other")
        self.biases["position_bias.table"] = BiasUse(spec, source)
        return "position_bias.table"

    def project(
        self,
        x: Slot | Span,
        parts: Sequence[Projection],
        out: Slot | Span,
        activation: ActivationKind | None = None,
        accumulate: bool = False,
    ) -> list[Span]:
        """Emits the projections of x, side by side into `out`; returns the columns of each. accumulate: they are added
        to what `out` has."""
        target = whole(out) if isinstance(out, Slot) else out
        starts = [target.start + sum(part.out_features for part in parts[:index]) for index in range(len(parts))]
        spans = [Span(target.slot, start, part.out_features) for start, part in zip(starts, parts, strict=True)]
        placed = zip(parts, spans, strict=True)
        given = whole(x) if isinstance(x, Slot) else x
        for _, group in groupby(placed, key=lambda item: (self.layouts.get(item[0].weight), item[0].bias)):
            self._linear(given, list(group), activation, accumulate)
        return spans

    def _linear(
        self, x: Span, group: list[tuple[Projection, Span]], activation: ActivationKind | None, accumulate: bool
    ) -> None:
        parts, spans = [part for part, _ in group], [span for _, span in group]
        name = _joined_name([part.weight for part in parts])
        shapes = tuple((part.out_features, x.width) for part in parts)
        self.weights[name] = WeightUse(tuple(part.weight for part in parts), shapes, parts[0].role)
        bias = None
        if parts[0].bias:
            bias = f"{name}.bias"
            vectors = tuple((part.out_features,) for part in parts)
            self.weights[bias] = WeightUse(tuple(f"{part.weight}.bias" for part in parts), vectors, "other")
        out = Span(spans[0].slot, spans[0].start, sum(span.width for span in spans))
        self.emit(Linear(x, name, out, bias=bias, activation=activation, accumulate=accumulate))

    def finish(self, logits: Slot, kept: Slot | None = None, given: Slot | None = None) -> CompiledDecoder:
        program = StepProgram(
            tuple(self.operators),
            tuple(self._slots.values()),
            logits,
            tuple(self.caches),
            tuple(self.states),
            kept,
            given,
        )
        return CompiledDecoder(program, dict(self.weights), dict(self.ropes), dict(self.biases))


def _joined_name(weights: Sequence[str]) -> str:
    """Joins names: `layers.0.q` and `layers.0.k` become `layers.0.q+k`."""
    prefix = weights[0].rpartition(".")[0]
    return f"{prefix}." + "+".join(weight.rpartition(".")[2] for weight in weights) if prefix else weights[0]
