"""The inventory: the checkpoint tensor and the planned form of each logical weight. It accounts for every tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.base.errors import ApplianceError
from appliance.catalog.formats import F32, WeightForm
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.layers.spec import WeightSource
from appliance.models.describe import Described
from appliance.models.tensors import tensor_problems
from appliance.plan.types import PrecisionPlan
from appliance.plan.weights import planned_forms


class WeightError(ApplianceError):
    """The checkpoint lacks weights that its architecture needs, or has them in a form that cannot be loaded."""


@dataclass(frozen=True, slots=True)
class InventoryItem:
    tensor: TensorFacts
    source: WeightSource
    form: WeightForm


def take_inventory(described: Described, facts: ModelFacts, precision: PrecisionPlan) -> Mapping[str, InventoryItem]:
    """Returns the checkpoint tensor of every logical weight.

    Raises WeightError naming all missing tensors, or all that would not be read, or those with a wrong shape.
    """
    for problem in tensor_problems(described, facts):
        raise WeightError(problem.message, hint=problem.hint or None)
    stored = {tensor.name: tensor for tensor in facts.tensors}
    roles, forms = described.compiled.roles(), planned_forms(precision)
    found = {}
    for name, source in described.spec.weights.items():
        tensor, role = stored[source.tensor], roles[name]
        form = F32 if role == "other" else forms.get((tensor.storage, role))
        if form is None:
            raise WeightError(f"the plan has no form for {role} weights stored as {tensor.storage} ({tensor.name})")
        found[name] = InventoryItem(tensor, source, form)
    _check_joined(described, found)
    return found


def _check_joined(described: Described, found: Mapping[str, InventoryItem]) -> None:
    """Raises WeightError if the parts of one weight are stored unlike: the experts of a layer are joined anyway."""
    joined = described.stored_as({name: item.form for name, item in found.items()}).compiled
    for name, use in joined.weights.items():
        forms = {found[part].form: found[part].tensor.name for part in use.parts}
        if len(forms) > 1:
            stored = ", ".join(f"{tensor} becomes {form.layout}" for form, tensor in forms.items())
            raise WeightError(f"{name} is one weight, and its parts are stored unlike each other: {stored}")
