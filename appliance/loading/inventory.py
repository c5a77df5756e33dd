"""Which checkpoint tensor each logical weight is, and the form it is planned to take. Every tensor is accounted for."""

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
    """The checkpoint does not hold the weights that its architecture needs, or not in a form that can be loaded."""


@dataclass(frozen=True, slots=True)
class InventoryItem:
    tensor: TensorFacts
    source: WeightSource
    form: WeightForm


def take_inventory(described: Described, facts: ModelFacts, precision: PrecisionPlan) -> Mapping[str, InventoryItem]:
    """The checkpoint tensor of every logical weight.

    Raises WeightError naming all tensors that are missing, or all that nothing would read, or one of another shape.
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
