"""Measures the operations per second of kernels on a whole prompt: a product for each weight layout, and attention.

The peaks of `measure` are for products in registers; a real product also rounds, loads and stores. Estimates of
prompts use these rates, so they match the built kernels on this machine.
"""

import contextlib
import time
from collections.abc import Mapping

import numpy as np

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.library import Library
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics, Placement
from appliance.kernels.interface import StepInputs
from appliance.kernels.layout import BOOK_LAYOUTS, PAIRED_LAYOUTS, ROUNDED_INPUT_LAYOUTS, CanonicalWeight, Layout
from appliance.program.caches import KvShape
from appliance.program.operators import Embed, GatherRows, Linear, PagedAttention, StepProgram
from appliance.program.slots import Extent, Slot, Span

ATTENTION = "attention"  # a key in the mapping of rates, beside the layouts

_ROUNDS = 4
_ROWS = 128  # tokens of a step: enough to be compute-bound; a step takes about a millisecond
_PROMPT = 256  # tokens of a step of attention, whose cost per token grows with them
_WIDTH = 768
_BLOCK = 16
_HEADS, _HEAD_DIM = 8, 64
_GROUPS = {  # those of common formats
    Layout.INT8: 32, Layout.INT4: 32, Layout.INT5: 32, Layout.INT6: 16, Layout.F8: 128,
    **dict.fromkeys(BOOK_LAYOUTS, 32),
}  # fmt: skip
_TYPES = {Layout.F32: np.float32, Layout.F16: np.float16, Layout.BF16: np.uint16, Layout.INT8: np.int8}


def kernel_rates(library: Library, num_threads: int, seconds: float) -> Mapping[str, float]:
    """Returns the rate of every layout and of attention: the best of as many steps as fit into `seconds` for each.

    Weights whose codes are integers are multiplied with 8-bit activations. Raises BindError.
    """
    kernels = CpuKernelSet("measured", library)
    operations = dict.fromkeys(map(str, Layout), 2.0 * _WIDTH * _WIDTH * _ROWS)
    operations[ATTENTION] = 4.0 * _HEADS * _HEAD_DIM * (_PROMPT * (_PROMPT + 1) // 2)
    best = dict.fromkeys(operations, float("inf"))
    with contextlib.ExitStack() as opened:
        executables = {layout.value: _linear(kernels, layout, num_threads) for layout in Layout}
        executables[ATTENTION] = _attention(kernels, num_threads)
        for executable in executables.values():
            opened.callback(executable.close)
        for _ in range(_ROUNDS):  # in rounds, so that other work on the machine does not hit all steps of one operator
            for name, executable in executables.items():
                rows = _PROMPT if name == ATTENTION else _ROWS
                best[name] = min(best[name], _best_seconds(executable, rows, seconds / _ROUNDS))
    return {name: operations[name] / best[name] for name in operations}


def _linear(kernels: CpuKernelSet, layout: Layout, num_threads: int) -> CpuExecutable:
    slots = (Slot(0, Extent.TOKENS, _WIDTH), Slot(1, Extent.TOKENS, _WIDTH), Slot(2, Extent.SAMPLED, _WIDTH))
    product = Linear(Span(slots[0], 0, _WIDTH), "weight", Span(slots[1], 0, _WIDTH))
    program = StepProgram((Embed("table", slots[0]), product, GatherRows(slots[1], slots[2])), slots, slots[2])
    weights = {"table": _table(), "weight": _weight(layout)}
    return kernels.bind(program, weights, _execution(_ROWS, num_threads, quantize=layout in ROUNDED_INPUT_LAYOUTS))


def _attention(kernels: CpuKernelSet, num_threads: int) -> CpuExecutable:
    width = _HEADS * _HEAD_DIM
    slots = (Slot(0, Extent.TOKENS, _WIDTH), Slot(1, Extent.TOKENS, width), Slot(2, Extent.SAMPLED, width))
    attention = PagedAttention(
        q=Span(slots[0], 0, width), out=slots[1], cache=0, num_heads=_HEADS, num_kv_heads=_HEADS // 4,
        head_dim=_HEAD_DIM, scale=_HEAD_DIM**-0.5,
    )  # fmt: skip
    caches = (KvShape(_HEADS // 4, _HEAD_DIM, _HEAD_DIM),)
    program = StepProgram(
        (Embed("table", slots[0]), attention, GatherRows(slots[1], slots[2])), slots, slots[2], caches
    )
    return kernels.bind(program, {"table": _table()}, _execution(_PROMPT, num_threads, quantize=False))


def _table() -> CanonicalWeight:
    values = np.random.default_rng(0).standard_normal((1, _WIDTH)).astype(np.float32)
    return CanonicalWeight(Layout.F32, 1, _WIDTH, values)


def _weight(layout: Layout) -> CanonicalWeight:
    """Makes a weight of codes that every layout can hold. Their values do not change the time, except subnormals."""
    columns = _WIDTH // 2 if layout in PAIRED_LAYOUTS else _WIDTH
    codes = np.random.default_rng(1).integers(0, 16, (_WIDTH, columns)).astype(_TYPES.get(layout, np.uint8))
    if layout is Layout.BF16:
        codes += 0x3F80  # the bits of 1 to 1.12
    group = _GROUPS.get(layout)
    if group is None:
        return CanonicalWeight(layout, _WIDTH, _WIDTH, codes)
    scale = np.full((_WIDTH, _WIDTH // group), 0.01, np.float16)
    return CanonicalWeight(layout, _WIDTH, _WIDTH, codes, scale, None, group)


def _execution(rows: int, num_threads: int, *, quantize: bool) -> Execution:
    limits = ExecutionLimits(rows, 1, 1, rows, _BLOCK, rows // _BLOCK)
    return Execution(limits, Numerics("bf16", quantize), Placement(num_threads))


def _best_seconds(executable: CpuExecutable, rows: int, seconds: float) -> float:
    """Returns the best seconds of the program's second operator, in steps with one prompt of `rows` tokens."""
    every = np.arange(rows, dtype=np.int32)
    step = StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=every,
        slot_mapping=every[None],
        query_start=np.array([0, rows], np.int32),
        seq_lens=np.array([rows], np.int32),
        block_tables=np.arange(rows // _BLOCK, dtype=np.int32).reshape(1, 1, -1),
        sampled_rows=np.zeros(1, np.int32),
    )
    best, end, taken = float("inf"), time.perf_counter() + seconds, np.zeros(3)
    executable.run(step)
    executable.time_operators(taken)
    while best == float("inf") or time.perf_counter() < end:
        taken[:] = 0
        executable.run(step)
        best = min(best, float(taken[1]))
    executable.time_operators(None)
    return best
