"""The program of the planned model, its weights in their planned forms: what the passes read."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from appliance.catalog.formats import F32, WeightForm
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.models.describe import Described
from appliance.plan.weights import (
    Forms,
    Group,
    GroupSize,
    Weight,
    sizes_by_group,
    weight_bytes,
)
from appliance.program.arena import Liveness
from appliance.program.fusion import gates_of_linears, is_input_of_linear
from appliance.program.head import screened_head
from appliance.program.operators import Linear, Operator, StepProgram
from appliance.program.placement import IN_ORDER, ExpertPlacing
from appliance.program.routing import Experts, SpreadExperts
from appliance.program.shard_layout import Shard
from appliance.program.sharding import WeightRows, shard_program
from appliance.program.slots import Extent
from appliance.program.spreading import spread_experts
from appliance.program.stages import Stage, stage_program, staged_layout
from appliance.program.work import WeightSize


class Product(NamedTuple):
    """A matrix in some form, and what it meets. follows_gates: its input comes from a gated activation that the Linear
    before it may do, and that no other operator reads."""

    columns: int
    extent: Extent
    form: WeightForm
    follows_gates: bool


@dataclass(frozen=True)
class PlannedProgram:
    """A program with its weights in their planned forms, by name."""

    described: Described
    weights: Mapping[str, Weight]
    forms: Forms
    kernels: KernelSetFacts
    sizes: Mapping[str, int]  # bytes as the kernel set keeps them
    num_ranks: int = 1  # it is what the first of so many ranks has, and no rank has more
    num_replicas: int = 1  # it is what the first of so many has, which have its experts among them
    stages: "tuple[PlannedProgram, ...]" = ()  # what each pipeline stage has of it; none if there is one
    is_stage: bool = False

    def share(self, num_ranks: int, placing: ExpertPlacing = IN_ORDER) -> "PlannedProgram":
        """Returns what the first of several ranks has of it. Raises UncutError if ranks cannot share it."""
        if num_ranks == 1 or self.is_outline:
            return self
        sharded = shard_program(self.program, Shard(0, num_ranks), placing=placing)
        stages = tuple(stage.share(num_ranks, placing) for stage in self.stages)
        return replace(self._part(sharded.program, sharded.rows), num_ranks=num_ranks, stages=stages)

    def spread(self, num_replicas: int, placing: ExpertPlacing = IN_ORDER, num_ranks: int = 1) -> "PlannedProgram":
        """Returns what the first of several replicas has of it, which have its experts among them; with several ranks
        each, what `share` then divides among these: all but the experts, of which it has its first rank's. Raises
        UncutError if they cannot."""
        if self.is_outline:
            return self
        spread = spread_experts(self.program, Shard(0, num_replicas), placing, Shard(0, num_ranks))
        return replace(self._part(spread.program, spread.rows), num_replicas=num_replicas)

    def in_stages(self, layers: tuple[int, ...]) -> "PlannedProgram":
        """Returns the program with what stages of so many layers have of it. Raises UncutError if it has no such
        stages."""
        if not layers or self.is_outline:
            return self
        programs = (stage_program(self.program, Stage(number, layers)).program for number in range(len(layers)))
        stages = tuple(replace(self._part(each, {}), is_stage=True) for each in programs)
        layout = staged_layout(self.program, layers)
        return replace(self._part(msgspec.structs.replace(self.program, layout=layout), {}), stages=stages)

    def _part(self, program: StepProgram, rows: Mapping[str, WeightRows]) -> "PlannedProgram":
        """Returns a part of it, whose operators are those of `program`. rows: of weights of which it has some only."""
        compiled = msgspec.structs.replace(self.described.compiled, program=program)
        weights: dict[str, Weight] = {}
        vectors = program.vectors()
        for name in program.matrices() | vectors:
            source, own = rows.get(name, (name, None))
            if source in self.weights:
                whole = self.weights[source]
                weights[name] = whole if own is None else whole.some_rows(name, own)
        sizes = {
            name: weight_bytes(weight, self.forms, self.kernels, is_vector=name in vectors)
            for name, weight in weights.items()
        }
        return replace(self, described=self.described._replace(compiled=compiled), weights=weights, sizes=sizes)

    @property
    def program(self) -> StepProgram:
        return self.described.compiled.program

    @property
    def is_outline(self) -> bool:
        """Returns True if the program stands in for one that this version cannot build."""
        return not self.described.spec.weights

    @functools.cached_property
    def liveness(self) -> Liveness:
        return Liveness.of(self.program).private(self.program)

    @functools.cached_property
    def shared_liveness(self) -> Liveness:
        """Of the activations that ranks share."""
        return Liveness.of(self.program).shared(self.program)

    @functools.cached_property
    def operators(self) -> Mapping[type[Operator], tuple[Operator, ...]]:
        """Returns the operators of each kind, in the order of the program."""
        found: dict[type[Operator], list[Operator]] = {}
        for op in self.program.operators:
            found.setdefault(type(op), []).append(op)
        return {record: tuple(ops) for record, ops in found.items()}

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        """The mixtures of experts, of a program without places for adapters."""
        kinds = (self.operators.get(kind, ()) for kind in (Experts, SpreadExperts))
        return tuple(op for ops in kinds for op in ops if isinstance(op, Experts))

    @functools.cached_property
    def products(self) -> frozenset[Product]:
        """The different inputs that matrices meet."""
        gates = gates_of_linears(self.program)
        handed_on = {at for at in gates if is_input_of_linear(self.program, at)}
        return frozenset(
            Product(op.x.width, op.x.slot.extent, form, follows_gates=at - 1 in handed_on)
            for at, op in enumerate(self.program.operators)
            if isinstance(op, Linear)
            for form in self.forms_of(op)
        )

    @functools.cached_property
    def groups(self) -> Mapping[Group, GroupSize]:
        return sizes_by_group(self.weights, self.sizes)

    def form(self, weight: Weight) -> WeightForm:
        return F32 if weight.role == "other" else self.forms[next(weight.groups())]

    def forms_of(self, operator: Operator) -> Iterator[WeightForm]:
        """Forms of the matrices that an operator reads; of an outline, all that have their role."""
        for name in operator.named(operator.matrices):
            if name in self.weights:
                yield self.form(self.weights[name])
            elif self.is_outline:
                role = self.described.compiled.weights[name].role
                yield from (form for (_, each), form in self.forms.items() if each == role)

    def size_of(self, name: str) -> WeightSize:
        return WeightSize(self.sizes[name], self.form(self.weights[name]).layout)

    def head(self) -> Weight | None:
        """The weight of an output head that makes the logits with nothing but products."""
        if self.is_outline:
            tables = [weight for weight in self.weights.values() if weight.role == "embedding"]
            return tables[-1] if tables else None
        head = screened_head(self.program)
        return None if head is None else self.weights.get(head.op.weight)
