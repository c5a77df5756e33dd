"""The screen of the logits: a copy of the output head in fewer bits shows which logits of a row may be the largest."""

import contextlib
import ctypes
from dataclasses import dataclass

from appliance.catalog.formats import screen_form
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.weights import BoundWeights
from appliance.kernels.interface import FewLogits
from appliance.program.head import screened_head
from appliance.program.operators import StepProgram
from appliance.program.roofline import Screen

# For more than 128 largest logits there are so many candidates that a screen gains little. If an eighth of the rows
# needs all logits, the whole head is read for them, and the other rows then cost nothing more.
FEW_LOGITS = FewLogits(most=128, whole_share=1 / 8)


@dataclass(frozen=True, slots=True)
class LogitScreen:
    handle: ctypes.c_void_p
    facts: Screen

    @property
    def size_bytes(self) -> int:
        return self.facts.size_bytes


def create_screen(
    library: Library,
    pool: ctypes.c_void_p,
    resources: contextlib.ExitStack,
    program: StepProgram,
    weights: BoundWeights,
) -> LogitScreen | None:
    """Creates the screen; None if the logits are not plain products, or the weight has no screen. Raises BindError."""
    head = screened_head(program)
    if head is None:
        return None
    functions, weight, form, handle = (
        library.functions,
        weights.matrix(head.op.weight),
        abi.PackedForm(),
        ctypes.c_void_p(),
    )
    functions.appl_weight_form(weight, ctypes.byref(form))
    copy = screen_form(abi.LAYOUT_NAMES[form.layout], form.group_size or None, form.columns)
    if copy is None:
        return None
    library.check(functions.appl_screen_create(pool, weight, ctypes.byref(handle)), "the screen of the logits")
    resources.callback(functions.appl_screen_destroy, handle)
    size_bytes, most_rows = functions.appl_screen_bytes(handle), functions.appl_screen_most_rows(handle)
    return LogitScreen(handle, Screen(int(size_bytes), int(most_rows), copy.layout))
