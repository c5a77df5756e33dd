"""Pass `screen`: whether an int8 copy of the output head tells which few logits may count."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from appliance.base.units import format_size
from appliance.catalog.formats import INTEGER_LAYOUTS, is_unused, tensor_role
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.config import ConfigFacts
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.sizes import padded
from appliance.plan.types import MemoryItem, PrecisionPlan, WeightPlan

SCREEN = "logit_screen"  # among the items of memory
PATH, SPEC_PATH = "kernels.screen_logits", "hardware.kernels.screen_logits"
_LEAST_ELEMENTS = 1 << 22  # of a head that is worth a copy: smaller ones stay in a cache


def head_tensors(model: ModelFacts) -> list[TensorFacts]:
    """The tables that may serve as the output head: that alone, or where there is none the embedding."""
    tables = [each for each in model.tensors if tensor_role(each.name, len(each.shape)) == "embedding"]
    tables = [each for each in tables if not is_unused(each.name)]
    return [each for each in tables if each.name.endswith("lm_head.weight")] or tables


@dataclass(frozen=True, slots=True)
class ScreenRequest:
    """The copy that could be kept, and whether the spec says so; else it takes only memory that nothing else wants."""

    item: MemoryItem
    is_wanted: bool

    def decide(self, free_bytes: int, ledger: Ledger) -> bool:
        """free_bytes: what is left beside everything else, the cache too."""
        if self.is_wanted:
            return ledger.take(PATH, SPEC_PATH, True)
        if self.item.size_bytes <= free_bytes:
            return ledger.decide(PATH, True, "computed", "most tokens need few exact logits, and the copy fits")
        return ledger.decide(PATH, False, "computed", f"{format_size(self.item.size_bytes)} would be the cache's")


def request_screen(
    inputs: PlanInputs,
    kernels: KernelSetFacts,
    precision: PrecisionPlan,
    config: ConfigFacts | None,
    ledger: Ledger,
) -> ScreenRequest | None:
    """None where it is off, and the ledger says why."""
    wanted = inputs.spec.hardware.kernels.screen_logits
    heads = head_tensors(inputs.model)
    obstacle = next(_obstacles(heads, kernels, precision, config), None)
    if wanted is False:
        ledger.take(PATH, SPEC_PATH, False)
    elif obstacle is not None:
        if wanted is True:
            message = f"there is nothing to screen: {obstacle}"
            ledger.refuse(SPEC_PATH, "plan/screen", message, allowed="auto, false", hint="write auto")
        ledger.decide(PATH, False, "computed", obstacle)
    elif wanted == AUTO and sum(prod(head.shape) for head in heads) < _LEAST_ELEMENTS:
        ledger.decide(PATH, False, "computed", "the output head is small")
    else:
        return ScreenRequest(_item(heads, kernels), wanted is True)
    return None


def _item(heads: list[TensorFacts], kernels: KernelSetFacts) -> MemoryItem:
    """A byte an element, and three floats a row: its scale, and two norms."""
    shapes = [(padded(head.shape[0], kernels.panel), padded(head.shape[1], 8)) for head in heads]
    return MemoryItem(
        name=SCREEN,
        size_bytes=sum(rows * (columns + 12) for rows, columns in shapes),
        formula="the output head in 8 bits: " + " + ".join(f"{rows:,} x {columns:,}" for rows, columns in shapes),
    )


def _obstacles(
    heads: list[TensorFacts], kernels: KernelSetFacts, precision: PrecisionPlan, config: ConfigFacts | None
) -> Iterator[str]:
    if not kernels.can_screen_logits:
        yield f"{kernels.name} computes all logits"
    if config is not None and config.final_soft_cap is not None:
        yield "logits are capped behind the output head"
    forms = [_form(head, precision) for head in heads]
    if any(form is None or form.layout in INTEGER_LAYOUTS for form in forms):
        yield "the output head has 8 bits an element, or less"


def _form(head: TensorFacts, precision: PrecisionPlan) -> WeightPlan | None:
    found = (plan for plan in precision.weights if (plan.storage, plan.role) == (head.storage, "embedding"))
    return next(found, None)
