"""Pass `screen`: whether a copy of the output head in fewer bits tells which few logits may count."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from appliance.base.units import format_size
from appliance.catalog.formats import WeightForm, is_unused, screen_form, tensor_role
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.catalog.packing import Matrix, packed_total
from appliance.checkpoint.config import ConfigFacts
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.sizes import padded
from appliance.plan.types import MemoryItem, PrecisionPlan, WeightPlan

SCREEN = "logit_screen"  # among the items of memory
PATH, SPEC_PATH = "kernels.screen_logits", "hardware.kernels.screen_logits"
_LEAST_ELEMENTS = 1 << 22  # of a head that is worth a copy: smaller ones stay in a cache
_LEAST_SAVED = 1 / 32  # of the bytes of a token's weights, where a copy saves a quarter of the head and takes three


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
    found = screen_forms(heads, precision)
    forms = [form for form in found if form]
    obstacle = next(_obstacles(found, kernels, config), None)
    if wanted is False:
        ledger.take(PATH, SPEC_PATH, False)
    elif obstacle is not None:
        if wanted is True:
            message = f"there is nothing to screen: {obstacle}"
            ledger.refuse(SPEC_PATH, "plan/screen", message, allowed="auto, false", hint="write auto")
        ledger.decide(PATH, False, "computed", obstacle)
    elif wanted == AUTO and (reason := next(_reasons_against(heads, forms, precision), None)) is not None:
        ledger.decide(PATH, False, "computed", reason)
    else:
        return ScreenRequest(_item(heads, forms, kernels), wanted is True)
    return None


def screen_forms(heads: list[TensorFacts], precision: PrecisionPlan) -> list[WeightForm | None]:
    """Of each head's copy; None where it has none."""
    plans = _embedding_plans(precision)
    found = [(plans.get(head.storage), head.shape[1]) for head in heads]
    return [screen_form(plan.layout, plan.group_size, columns) if plan else None for plan, columns in found]


def screen_bytes(heads: list[TensorFacts], forms: list[WeightForm], panel: int) -> int:
    """Codes, scales, and two norms a row."""
    norms = sum(8 * padded(head.shape[0], panel) for head in heads)
    return norms + _packed_bytes(heads, forms, panel)


def _packed_bytes(heads: list[TensorFacts], forms: list[WeightForm], panel: int) -> int:
    return sum(
        packed_total(form, [Matrix(head.name, head.shape)], panel) for head, form in zip(heads, forms, strict=True)
    )


def _item(heads: list[TensorFacts], forms: list[WeightForm], kernels: KernelSetFacts) -> MemoryItem:
    parts = [
        f"{head.shape[0]:,} x {head.shape[1]:,} in {form.element_bits} bits"
        for head, form in zip(heads, forms, strict=True)
    ]
    return MemoryItem(
        name=SCREEN,
        size_bytes=screen_bytes(heads, forms, kernels.panel),
        formula="a copy of the output head: " + " + ".join(parts),
    )


def _reasons_against(heads: list[TensorFacts], forms: list[WeightForm], precision: PrecisionPlan) -> Iterator[str]:
    """Why a copy that could be is not worth its memory."""
    if sum(prod(head.shape) for head in heads) < _LEAST_ELEMENTS:
        yield "the output head is small"
    if any(form.layout == "int6" for form in forms):
        plans = _embedding_plans(precision)
        eights = [WeightForm("int8", plans[head.storage].group_size) for head in heads]
        head_bytes = _packed_bytes(heads, eights, panel=1)
        read_bytes = head_bytes + sum(plan.planned_bytes for plan in precision.weights if plan.role == "linear")
        saved = (head_bytes - screen_bytes(heads, forms, panel=1)) / read_bytes
        if saved < _LEAST_SAVED:
            yield f"a copy in 6 bits would save {saved:.1%} of what a token reads"


def _embedding_plans(precision: PrecisionPlan) -> dict[str, WeightPlan]:
    return {plan.storage: plan for plan in precision.weights if plan.role == "embedding"}


def _obstacles(forms: list[WeightForm | None], kernels: KernelSetFacts, config: ConfigFacts | None) -> Iterator[str]:
    if not kernels.can_screen_logits:
        yield f"{kernels.name} computes all logits"
    if config is not None and config.final_soft_cap is not None:
        yield "logits are capped behind the output head"
    if None in forms:
        yield "the output head has less than 8 bits an element, or groups that no copy in 6 bits has"
