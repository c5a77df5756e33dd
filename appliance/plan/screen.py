"""Pass `screen`: whether a copy of the output head in fewer bits tells which few logits may count."""

from collections.abc import Iterator

import msgspec

from appliance.base.units import format_size
from appliance.catalog.formats import SIX_BIT_SCREEN_ROWS, WeightForm, screen_form
from appliance.catalog.packing import packed_bytes
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import padded
from appliance.plan.types import MemoryItem, PrecisionPlan
from appliance.program.roofline import Screen

SCREEN = "logit_screen"  # among the items of memory
PATH, SPEC_PATH = "kernels.screen_logits", "hardware.kernels.screen_logits"
_LEAST_ELEMENTS = 1 << 22  # of a head that is worth a copy: smaller ones stay in a cache
_LEAST_SAVED = 1 / 32  # of the bytes of a token's weights, where a copy saves a quarter of the head and takes three
_ALL_ROWS = 1 << 31


class ScreenRequest(msgspec.Struct, frozen=True):
    """A copy that could be kept. If the spec does not ask for it, it only takes memory that is left over."""

    item: MemoryItem
    is_wanted: bool

    def decide(self, free_bytes: int, ledger: Ledger) -> bool:
        """free_bytes: what is left beside everything else, the cache too."""
        if self.is_wanted:
            return ledger.take(PATH, SPEC_PATH, True)
        if self.item.size_bytes <= free_bytes:
            return ledger.decide(PATH, True, "computed", "most tokens need few exact logits, and the copy fits")
        return ledger.decide(PATH, False, "computed", f"{format_size(self.item.size_bytes)} would be the cache's")


class _Head(msgspec.Struct, frozen=True):
    """A head [rows, columns] in `form`, and the form of its copy."""

    rows: int
    columns: int
    form: WeightForm
    copy: WeightForm

    def copy_bytes(self, panel: int) -> int:
        """Codes, scales, and two norms a row."""
        return 8 * padded(self.rows, panel) + packed_bytes(self.copy, self.rows, self.columns, panel)


def request_screen(
    inputs: PlanInputs, program: PlannedProgram, precision: PrecisionPlan, ledger: Ledger
) -> ScreenRequest | None:
    """Returns None if the screen is off; the ledger then has the reason."""
    wanted = inputs.spec.hardware.kernels.screen_logits
    head = _head(program)
    if wanted is False:
        ledger.take(PATH, SPEC_PATH, False)
    elif isinstance(head, str):
        if wanted is True:
            message = f"there is nothing to screen: {head}"
            ledger.refuse(SPEC_PATH, "plan/screen", message, allowed="auto, false", hint="write auto")
        ledger.decide(PATH, False, "computed", head)
    elif wanted == AUTO and (reason := next(_reasons_against(head, precision), None)) is not None:
        ledger.decide(PATH, False, "computed", reason)
    else:
        return ScreenRequest(_item(head, program.kernels.panel), wanted is True)
    return None


def head_screen(program: PlannedProgram) -> Screen | None:
    """The copy of the head as the roofline counts it; None where there is none."""
    head = _head(program)
    if isinstance(head, str):
        return None
    most_rows = SIX_BIT_SCREEN_ROWS if head.copy.layout == "int6" else _ALL_ROWS
    return Screen(head.copy_bytes(panel=1), most_rows, head.copy.layout)


def _head(program: PlannedProgram) -> _Head | str:
    """The head with a copy that could be kept of it, or why there is none."""
    if program.described.spec.pooling is not None:
        return "a model that pools has no logits"
    if not program.kernels.can_screen_logits:
        return f"{program.kernels.name} computes all logits"
    weight = program.head()
    if weight is None or weight.columns is None:
        return "logits are capped, or changed otherwise, behind the output head"
    form = program.form(weight)
    copy = screen_form(form.layout, form.group_size, weight.columns)
    if copy is None:
        return "the output head has less than 8 bits an element, or groups that no copy in 6 bits has"
    return _Head(weight.rows, weight.columns, form, copy)


def _item(head: _Head, panel: int) -> MemoryItem:
    what = f"{head.rows:,} x {head.columns:,} in {head.copy.element_bits} bits"
    return MemoryItem(name=SCREEN, size_bytes=head.copy_bytes(panel), formula=f"a copy of the output head: {what}")


def _reasons_against(head: _Head, precision: PrecisionPlan) -> Iterator[str]:
    """Why a copy that could be is not worth its memory."""
    if head.rows * head.columns < _LEAST_ELEMENTS:
        yield "the output head is small"
    if head.copy.layout == "int6":
        head_bytes = packed_bytes(WeightForm("int8", head.form.group_size), head.rows, head.columns, panel=1)
        read_bytes = head_bytes + sum(plan.planned_bytes for plan in precision.weights if plan.role == "linear")
        saved = (head_bytes - head.copy_bytes(panel=1)) / read_bytes
        if saved < _LEAST_SAVED:
            yield f"a copy in 6 bits would save {saved:.1%} of what a token reads"
