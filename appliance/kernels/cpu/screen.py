"""The screen of the logits: a copy of the output head in fewer bits tells where the largest logits of a row may be."""

import contextlib
import ctypes
from dataclasses import dataclass

from appliance.catalog.formats import screen_form
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.weights import BoundWeights
from appliance.program.operators import Extent, Linear, Span, StepProgram


@dataclass(frozen=True, slots=True)
class LogitScreen:
    handle: ctypes.c_void_p
    size_bytes: int
    most_rows: int  # of logits, in steps that use it


def screened_head(program: StepProgram) -> Linear | None:
    """The Linear that ends the program and alone makes its logits, with nothing but products: the largest of these can
    be told before all are computed. None where there is no such."""
    op, logits = program.operators[-1], program.logits
    if not isinstance(op, Linear) or op.out != Span(logits, 0, logits.width) or op.x.slot.extent is not Extent.SAMPLED:
        return None
    return None if op.bias or op.activation or op.accumulate else op


def create_screen(
    library: Library,
    pool: ctypes.c_void_p,
    resources: contextlib.ExitStack,
    program: StepProgram,
    weights: BoundWeights,
) -> LogitScreen | None:
    """None where the logits are not just products, or the weight has no screen. Raises BindError."""
    head = screened_head(program)
    if head is None:
        return None
    functions, weight, form, handle = (
        library.functions,
        weights.matrix(head.weight),
        abi.PackedForm(),
        ctypes.c_void_p(),
    )
    functions.appl_weight_form(weight, ctypes.byref(form))
    layout = next(name for name, value in abi.LAYOUTS.items() if value == form.layout)
    if screen_form(layout, form.group_size or None, form.columns) is None:
        return None
    library.check(functions.appl_screen_create(pool, weight, ctypes.byref(handle)), "the screen of the logits")
    resources.callback(functions.appl_screen_destroy, handle)
    return LogitScreen(handle, int(functions.appl_screen_bytes(handle)), int(functions.appl_screen_most_rows(handle)))
