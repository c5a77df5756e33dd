"""`hardware.memory.lock`: what is locked is resident and counted by the system; a limit that is too low is said."""

import contextlib
import mmap
import multiprocessing
import os
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.kernels.cpu.locking import lock_memory, locked_bytes
from appliance.kernels.cpu.memory import MappedMemory
from appliance.kernels.errors import BindError
from appliance.plan.boot import BootReport
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import TORCH, engine_of, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

LOCKED = "hardware.memory.lock=true"
PAGE = mmap.PAGESIZE
NOBODY = 65534


def test_pages_are_locked_once_each_until_they_are_freed() -> None:
    memory, before = MappedMemory(8 * PAGE), locked_bytes()
    start = memory.address
    with contextlib.ExitStack() as resources:
        ranges = [(start + 10, 20), (start + 100, PAGE), (start + 100, 7), (start + 5 * PAGE, PAGE)]
        assert lock_memory(ranges, resources) == 3 * PAGE
        assert locked_bytes() - before == 3 * PAGE
    assert locked_bytes() == before


def test_pages_that_a_neighbour_has_locked_are_no_fault() -> None:
    memory = MappedMemory(8 * PAGE)
    with contextlib.ExitStack() as resources:
        lock_memory([(memory.address, PAGE)], resources)
        assert lock_memory([(memory.address + 10, 4 * PAGE)], resources) == 5 * PAGE


def _lock_as_nobody(answer: Connection) -> None:
    memory = MappedMemory(64 * PAGE)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 * PAGE, 8 * PAGE))
    if os.geteuid() == 0:  # who may lock whatever the limit says
        os.setuid(NOBODY)
    with contextlib.ExitStack() as resources:
        lock_memory([(memory.address, 8 * PAGE)], resources)  # the limit may be raised so far
    try:
        lock_memory([(memory.address, memory.size_bytes)], contextlib.ExitStack())
    except BindError as error:
        answer.send((str(error), error.hint))
    answer.close()


def test_a_limit_that_is_too_low_is_said_in_one_sentence() -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_lock_as_nobody, args=(there,))
    process.start()
    there.close()
    message, hint = here.recv()
    process.join(10)
    assert message == "256 KiB of memory cannot be locked: Cannot allocate memory; the limit is 32.0 KiB"
    assert "ulimit -l unlimited" in hint


def test_an_engine_locks_its_weights_and_cache(spec_of: Callable[[str], Path]) -> None:
    before = locked_bytes()
    with engine_of(spec_of("llama"), LOCKED) as engine:
        report = msgspec.msgpack.decode(engine._loop.boot_report, type=BootReport)
        wanted = report.memory_bytes["weights"] + report.memory_bytes["kv_cache"]
        assert report.locked_bytes is not None
        assert locked_bytes() >= report.locked_bytes - before >= wanted
        sampling = SamplingParams(max_tokens=2, temperature=0.0)
        engine.send(GenerateRequest(request_id="a", prompt_token_ids=[3, 4, 5], sampling=sampling))
        assert any(isinstance(each, OutputBatch) for each in engine.receive())
    with engine_of(spec_of("llama")) as engine:
        assert msgspec.msgpack.decode(engine._loop.boot_report, type=BootReport).locked_bytes is None


@pytest.mark.parametrize("kernel_set", [TORCH, "hardware.kernels.kernel_set=reference"])
def test_a_set_that_locks_nothing_is_refused(kernel_set: str, spec_of: Callable[[str], Path]) -> None:
    with pytest.raises(SpecError, match="locks nothing: only the sets cpu-"):
        prepare(str(spec_of("llama")), (LOCKED, kernel_set))
