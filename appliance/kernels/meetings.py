"""Measures how long two ranks of this machine take to make columns known to each other.

`python -m appliance.kernels.meetings LEVEL RUNS DESCRIPTOR` is the other rank.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.library import load_level
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics, Placement
from appliance.kernels.interface import StepInputs
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.ranks import RankError, Ranks, SharedMemory
from appliance.program.operators import Copy, Embed, GatherRows, Operator, StepProgram
from appliance.program.ranks import Gather
from appliance.program.slots import Extent, Slot, Span, whole

MEETING_BYTES = 8 << 10  # the hidden states of a token in a model of 2,048 columns

_WIDTH = MEETING_BYTES // 4
_MEETINGS = 200  # of a run: what a run costs beside them does not count
_RUNS = 100
_TIMEOUT_S = 20.0  # until the other process has loaded what it needs


def measure_meeting(level: str, runs: int = _RUNS) -> float | None:
    """Returns the seconds in which each of two ranks writes a half of 8 KiB, waits for the other, and reads all: the
    median of runs of many. Returns None if there is one CPU, as ranks then wait for their turn on it, or if the other
    process fails. Raises KernelSetError if the level cannot run.
    """
    if len(os.sched_getaffinity(0)) < 2:
        return None
    memory = SharedMemory()
    try:
        with _other(level, runs, memory):
            return statistics.median(_times(level, runs, Ranks(memory, 0, 2, _TIMEOUT_S))) / _MEETINGS
    except RankError:
        return None
    finally:
        memory.close()


@contextlib.contextmanager
def _other(level: str, runs: int, memory: SharedMemory) -> Iterator[None]:
    """Has the other rank run meanwhile."""
    command = [sys.executable, "-m", "appliance.kernels.meetings", level, str(runs), str(memory.descriptor)]
    with subprocess.Popen(command, pass_fds=[memory.descriptor]) as process:
        try:
            yield
        finally:
            process.kill()


def _times(level: str, runs: int, ranks: Ranks) -> list[float]:
    executable, step, found = _bound(level, ranks), _one_token(), list[float]()
    try:
        executable.run(step)  # the memory is resident then, and both are there
        for _ in range(runs):
            started = time.perf_counter()
            executable.run(step)
            found.append(time.perf_counter() - started)
    finally:
        executable.close()
    return found


def _bound(level: str, ranks: Ranks) -> CpuExecutable:
    own, logits = Slot(0, Extent.TOKENS, _WIDTH), Slot(1, Extent.SAMPLED, _WIDTH)
    shared = (Slot(2, Extent.TOKENS, _WIDTH), Slot(3, Extent.TOKENS, _WIDTH))  # in turn: one may still be read
    half = _WIDTH // 2
    operators: list[Operator] = [Embed("table", own)]
    for number in range(_MEETINGS):
        there = shared[number % 2]
        operators += [
            Copy(Span(own, ranks.rank * half, half), Span(there, ranks.rank * half, half)),
            Gather(whole(there), (0, half, _WIDTH)),
            Copy(whole(there), whole(own)),
        ]
    operators.append(GatherRows(own, logits))
    kept = frozenset(slot.index for slot in shared)
    program = StepProgram(tuple(operators), (own, logits, *shared), logits, shared=kept)
    table = CanonicalWeight(Layout.F32, 1, _WIDTH, np.ones((1, _WIDTH), np.float32))
    limits = ExecutionLimits(1, 1, 1, 16, 16, 1)
    execution = Execution(limits, Numerics("bf16", quantize_activations=False), Placement(1), ranks=ranks)
    return CpuKernelSet("measured", load_level(level)).bind(program, {"table": table}, execution)


def _one_token() -> StepInputs:
    nothing = np.zeros(1, np.int32)
    return StepInputs(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=nothing[None],
        query_start=np.array([0, 1], np.int32),
        seq_lens=np.ones(1, np.int32),
        block_tables=nothing[None, None],
        sampled_rows=nothing,
    )


if __name__ == "__main__":
    _level, _runs, _descriptor = sys.argv[1:]
    with contextlib.suppress(RankError):  # the first rank says what failed
        _times(_level, int(_runs), Ranks(SharedMemory(int(_descriptor)), 1, 2, _TIMEOUT_S))
