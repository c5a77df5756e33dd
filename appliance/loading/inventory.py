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
    return found
