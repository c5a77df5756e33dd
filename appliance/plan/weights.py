"""The weights that a program reads: which stored tensors they are made of, and what they take as they are planned."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple, cast

from msgspec.structs import replace

from appliance.catalog.formats import DENSE, F32, LOAD_QUANTIZATIONS, STORAGES, CanonicalLayout, TensorRole, WeightForm
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.catalog.packing import device_bytes, packed_bytes
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.program import WeightUse
from appliance.layers.spec import WeightSource
from appliance.models.describe import Described
from appliance.models.tensors import is_ignored, shape_of
from appliance.plan.types import PrecisionPlan, WeightPlan
from appliance.program.shard_layout import Rows

Group = tuple[str, TensorRole]  # a stored type in a role: what a row of the plan is about
Forms = Mapping[Group, WeightForm]


class WeightPart(NamedTuple):
    """Rows of a weight, and the tensor that they are read from. A vector has no columns."""

    tensor: TensorFacts
    rows: int
    columns: int | None


class Weight(NamedTuple):
    """One weight of a program: parts that are packed as one matrix. `copies`: so many matrices of this shape."""

    name: str
    role: TensorRole
    parts: tuple[WeightPart, ...]
    copies: int = 1

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int | None:
        return self.parts[0].columns

    def some_rows(self, name: str, rows: Rows) -> "Weight":
        """Returns so many of its rows, as a weight of another name."""
        found, before = list[WeightPart](), 0
        for part in self.parts:
            kept = sum(max(0, min(stop, before + part.rows) - max(start, before)) for start, stop in rows)
            found += [part._replace(rows=kept)] if kept else []
            before += part.rows
        return Weight(name, self.role, tuple(found), self.copies)

    def groups(self) -> Iterator[Group]:
        return ((part.tensor.storage, self.role) for part in self.parts)


def read_weights(described: Described, model: ModelFacts) -> dict[str, Weight]:
    """Returns the weights of the program by name. Missing tensors are left out: they are refused elsewhere."""
    if not described.spec.weights:
        return {weight.name: weight for weight in _by_shape(described, model)}
    stored = {tensor.name: tensor for tensor in model.tensors}
    found = (_weight(name, use, described, stored) for name, use in described.compiled.weights.items())
    return {weight.name: weight for weight in found if weight.parts}


def _weight(name: str, use: WeightUse, described: Described, stored: Mapping[str, TensorFacts]) -> Weight:
    sources = ((described.spec.weights[part], shape) for part, shape in zip(use.parts, use.shapes, strict=True))
    parts = (_part(stored[each.tensor], each, shape) for each, shape in sources if each.tensor in stored)
    return Weight(name, use.role, tuple(parts))


def _part(tensor: TensorFacts, source: WeightSource, used: tuple[int, ...]) -> WeightPart:
    """used: the shape in the program. What it uses as a vector may have more dimensions in the checkpoint."""
    shape = shape_of(tensor, source)
    if len(used) == 1:
        return WeightPart(tensor, prod(shape), None)
    return WeightPart(tensor, shape[0], shape[1] if len(shape) > 1 else None)


def _by_shape(described: Described, model: ModelFacts) -> Iterator[Weight]:
    """Every tensor as a weight of its own, for a decoder that only has an outline: a matrix with a row for each token
    of the vocabulary is a table, any other a linear map."""
    for tensor in model.tensors:
        if is_ignored(tensor.name, described.spec):
            continue
        if len(tensor.shape) < 2:
            yield Weight(tensor.name, "other", (WeightPart(tensor, prod(tensor.shape), None),))
            continue
        *outer, rows, columns = tensor.shape
        role: TensorRole = "embedding" if rows == described.spec.vocab_size else "linear"
        yield Weight(tensor.name, role, (WeightPart(tensor, rows, columns),), prod(outer))


def planned_forms(precision: PrecisionPlan) -> dict[Group, WeightForm]:
    """The form of each stored type in each role."""
    return {(plan.storage, plan.role): _form(plan) for plan in precision.weights}


def _form(plan: WeightPlan) -> WeightForm:
    native = STORAGES[plan.storage].form
    if native is not None and _shape(plan) == _shape(native):
        return native
    if plan.layout in DENSE:
        return DENSE[plan.layout]
    made = (form for roles in LOAD_QUANTIZATIONS.values() for form, _ in roles.values())
    other = WeightForm(cast(CanonicalLayout, plan.layout), plan.group_size, has_offset=plan.layout != "int8")
    return next((form for form in made if _shape(form) == _shape(plan)), other)


def _shape(form: WeightPlan | WeightForm) -> tuple[str, int | None, int | None]:
    return form.layout, form.group_size, form.sub_group_size


def weight_bytes(weight: Weight, forms: Forms, kernels: KernelSetFacts, *, is_vector: bool = False) -> int:
    """Bytes of a weight as the kernel set keeps it: vectors in f32, matrices packed in the form of their parts."""
    if kernels.runs == "models":  # every tensor has the planned float type
        num_elements = weight.copies * weight.rows * (weight.columns or 1)
        return num_elements * forms[next(weight.groups())].element_bits // 8
    if weight.columns is None or is_vector:
        return 4 * weight.rows * (weight.columns or 1)
    form = F32 if weight.role == "other" else forms[next(weight.groups())]
    if kernels.name == "reference":
        form = F32  # the oracle dequantizes everything
    if kernels.uses_torch:
        return weight.copies * device_bytes(form, weight.rows, weight.columns)
    if form.has_offset and all(STORAGES[part.tensor.storage].is_symmetric for part in weight.parts):
        form = replace(form, has_offset=False)  # it is known, and not kept
    return weight.copies * packed_bytes(form, weight.rows, weight.columns, kernels.panel)


class GroupSize(NamedTuple):
    """What the tensors of one stored type in one role take."""

    num_tensors: int
    stored_bytes: int
    planned_bytes: int


def sizes_by_group(weights: Mapping[str, Weight], sizes: Mapping[str, int]) -> dict[Group, GroupSize]:
    """sizes: planned bytes of each weight. One of several stored types is shared out by its rows."""
    planned: Counter[Group] = Counter()
    tensors: dict[Group, dict[str, TensorFacts]] = {}
    for name, weight in weights.items():
        before, total, row = 0, weight.rows, 0
        for part, group in zip(weight.parts, weight.groups(), strict=True):
            row += part.rows
            until = sizes[name] * row // total
            planned[group] += until - before
            before = until
            tensors.setdefault(group, {})[part.tensor.name] = part.tensor
    return {
        group: GroupSize(len(found), sum(tensor.stored_bytes for tensor in found.values()), planned[group])
        for group, found in tensors.items()
    }
