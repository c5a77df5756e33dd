"""The screen of the logits: an int8 copy of the output head that tells where the largest logits of a row may be."""

import contextlib
import ctypes
from dataclasses import dataclass

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.weights import BoundWeights
from appliance.kernels.operators import Extent, Linear, Span, StepProgram


@dataclass(frozen=True, slots=True)
class LogitScreen:
    handle: ctypes.c_void_p
    size_bytes: int


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
    """None where the logits come from something else than products with a dense weight. Raises BindError."""
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
    if form.layout >= abi.LAYOUTS["int8"]:
        return None
    library.check(functions.appl_screen_create(pool, weight, ctypes.byref(handle)), "the screen of the logits")
    resources.callback(functions.appl_screen_destroy, handle)
    return LogitScreen(handle, int(functions.appl_screen_bytes(handle)))
