"""How launchers call kernels, and what kernels have in common.

Under TRITON_INTERPRET=1, which triton reads when it is imported, kernels run on CPU tensors, a program at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

Recorder = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]

_RECORDER: ContextVar[Recorder | None] = ContextVar("_RECORDER", default=None)
_ARE_DEPENDENT: ContextVar[bool] = ContextVar("_ARE_DEPENDENT", default=False)


@triton.jit
def after_previous(PDL: tl.constexpr):
    """Waits for the kernel before this one, and lets the next one begin (programmatic dependent launch)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, pdl: bool = False, **options: Any) -> None:
    """Starts a kernel whose last parameters are constants by name. An empty grid starts nothing.

    pdl: it may begin before the previous one ends, for NVIDIA from sm90; also within `dependent`. One that follows a
    kernel of somebody else begins when that has ended.
    """
    if 0 in grid:
        return
    pdl = pdl or _ARE_DEPENDENT.get()
    if pdl:
        options["launch_pdl"] = True
    options["PDL"] = pdl
    recorder = _RECORDER.get()
    if recorder is not None:
        recorder(kernel, grid, arguments, options)
    else:
        kernel[grid](*arguments, **options)


@contextmanager
def dependent(are_dependent: bool) -> Iterator[None]:
    """Lets kernels begin before those before them end, if are_dependent: the first of their weights are then on the way
    when they are needed."""
    token = _ARE_DEPENDENT.set(are_dependent)
    try:
        yield
    finally:
        _ARE_DEPENDENT.reset(token)


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Gives launches to `recorder` (kernel, grid, arguments, options) and starts none."""
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


def power_of_two(number: int) -> int:
    """Returns the least power of two that is no less than a positive number."""
    return 1 << (number - 1).bit_length()


def row_stride(x: torch.Tensor) -> int:
    """Returns the numbers from one row to the next of a span [rows, width]. Raises ValueError if columns are apart."""
    if x.dim() != 2 or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(f"a span is [rows, width] with neighbouring columns, not {list(x.shape)} by {x.stride()}")
    return x.stride(0)
