"""Which checkpoint tensor each logical weight is, and the form it is planned to take. Every tensor is accounted for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

from appliance.base.errors import ApplianceError
from appliance.catalog.formats import DENSE, F32, STORAGES, CanonicalLayout, WeightForm, is_unused, tensor_role
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.spec import DecoderSpec, WeightSource
from appliance.plan.types import PrecisionPlan, WeightPlan

_SHOWN = 8  # names in one error


class WeightError(ApplianceError):
    """The checkpoint does not hold the weights that its architecture needs, or not in a form that can be loaded."""


@dataclass(frozen=True, slots=True)
class InventoryItem:
    tensor: TensorFacts
    source: WeightSource
    form: WeightForm


def take_inventory(spec: DecoderSpec, facts: ModelFacts, precision: PrecisionPlan) -> Mapping[str, InventoryItem]:
    """The checkpoint tensor of every logical weight.

    Raises WeightError naming all tensors that are missing, or all that nothing would read.
    """
    stored = {tensor.name: tensor for tensor in facts.tensors}
    wanted = dict.fromkeys(source.tensor for source in spec.weights.values())
    _refuse("the checkpoint lacks", [name for name in wanted if name not in stored], "is the download complete?")
    unread = [name for name in stored if name not in wanted and not _is_ignored(name, spec.ignored_tensors)]
    _refuse("no part of the model reads", unread, "does the architecture in config.json match the weights?")
    plans: dict[tuple[str, str], WeightPlan] = {(plan.storage, plan.role): plan for plan in precision.weights}
    return {
        name: InventoryItem(stored[source.tensor], source, planned_form(plans, stored[source.tensor]))
        for name, source in spec.weights.items()
    }


def planned_form(plans: Mapping[tuple[str, str], WeightPlan], tensor: TensorFacts) -> WeightForm:
    """The form that the plan gives a tensor. Vectors and position tables are f32 whatever the plan holds."""
    role = tensor_role(tensor.name, len(tensor.shape))
    if role == "other":
        return F32
    plan = plans.get((tensor.storage, role))
    if plan is None:
        raise WeightError(f"the plan has no form for {role} weights stored as {tensor.storage} ({tensor.name})")
    native = STORAGES[tensor.storage].form
    if native is not None and _shape(plan) == _shape(native):
        return native
    if plan.layout in DENSE:
        return DENSE[plan.layout]
    return WeightForm(cast(CanonicalLayout, plan.layout), plan.group_size, has_offset=plan.layout != "int8")


def _shape(form: WeightPlan | WeightForm) -> tuple[str, int | None, int | None]:
    return form.layout, form.group_size, form.sub_group_size


def _is_ignored(name: str, patterns: Sequence[str]) -> bool:
    return is_unused(name) or any(fnmatchcase(name, pattern) for pattern in patterns)


def _refuse(problem: str, names: Sequence[str], hint: str) -> None:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise WeightError(f"{problem} {len(names)} tensors: {', '.join(names[:_SHOWN])}{more}", hint=hint)
