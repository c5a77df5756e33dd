"""A CPU set that gives its memory back: the pages are the system's while it sleeps, and it says the same afterwards."""

import mmap
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.locking import Range, locked_bytes
from appliance.kernels.errors import ExecutableError
from appliance.kernels.execution import Execution
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.packed_cache import PackedCache
from appliance.program.operators import Linear, RmsNorm, StepProgram
from tests.kernels.harness import Graph, execution_of, logits_of, plain_step, random_weight, whole
from tests.kernels.test_packed_cache import cache_in, mapped_files, wait_for_keepers

NUM_TOKENS, WIDTH, PAGE = 8, 512, mmap.PAGESIZE
WAYS = ("packed", "kept", "mapped", "copied")


def graph_of_pages(seed: int = 3) -> tuple[Graph, StepProgram]:
    """A norm, a layer and a head whose weights are of many pages."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    x = graph.given(rng.standard_normal((NUM_TOKENS, WIDTH)).astype(np.float32))
    graph.add(RmsNorm(x, graph.vector(rng.standard_normal(WIDTH).astype(np.float32)), x, 1e-6))
    inner, out = graph.slot(WIDTH), graph.slot(1024)
    graph.add(Linear(whole(x), graph.weight(random_weight(rng, Layout.INT4, WIDTH, WIDTH, 32, "free")), whole(inner)))
    graph.add(Linear(whole(inner), graph.weight(random_weight(rng, Layout.BF16, 1024, WIDTH, 32, "none")), whole(out)))
    return graph, graph.program(out)


def started(
    native: CpuKernelSet, folder: Path, way: str, execution: Execution
) -> tuple[CpuExecutable, dict[str, CanonicalWeight]]:
    graph, program = graph_of_pages()
    weights = graph.weights
    cache: PackedCache | None = None
    if way != "packed":
        cache = cache_in(folder)
        cache.copies = way == "copied"
        if way != "kept":
            first = native.bind(program, weights, execution, cache_in(folder))
            wait_for_keepers()
            first.close()
    return native.bind(program, weights, execution, cache), weights


def resident(ranges: Iterable[Range]) -> int:
    """The whole pages of ranges that are in memory for this process (proc(5), pagemap: the highest bit)."""
    found = 0
    with Path("/proc/self/pagemap").open("rb") as pages:
        for address, size in ranges:
            first, end = -(-address // PAGE), (address + size) // PAGE
            pages.seek(8 * first)
            entries = struct.unpack(f"{max(0, end - first)}Q", pages.read(8 * max(0, end - first)))
            found += sum(entry >> 63 for entry in entries)
    return found


def caches(executable: CpuExecutable) -> list[Range]:
    memories = (executable._kv_cache.memory, executable._states.memory, *executable._at.memories)
    return [(each.address, each.size_bytes) for each in memories]


@pytest.mark.parametrize("locked", [False, True], ids=["", "locked"])
@pytest.mark.parametrize("keep", [True, False], ids=["level 1", "level 2"])
@pytest.mark.parametrize("way", WAYS)
def test_its_pages_are_gone_and_it_says_the_same_afterwards(
    native: CpuKernelSet, tmp_path: Path, way: str, keep: bool, locked: bool
) -> None:
    execution = execution_of()
    placement = replace(execution.placement, lock_memory=locked, screen_logits=True)
    executable, weights = started(native, tmp_path, way, replace(execution, placement=placement))
    before = logits_of(executable, plain_step(NUM_TOKENS)).copy()
    owned, awake, held = executable.memory_bytes, resident(executable._weights.ranges()), locked_bytes()
    assert awake > 100
    executable.sleep(keep_weights=keep)
    is_kept_here = keep and way == "packed"
    assert resident(executable._weights.ranges()) == (awake if is_kept_here else 0)
    assert resident(caches(executable)) == 0
    assert executable.memory_bytes["workspace"] == 0
    assert locked_bytes() <= held - (owned["weights"] if locked else 0)
    executable.wake_caches()
    executable.wake_weights(None if keep else weights)
    assert executable.memory_bytes == owned
    assert locked_bytes() == held
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), before)
    executable.wake_weights(None)  # one that is awake has nothing to do
    executable.wake_caches()
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), before)
    assert len(mapped_files(tmp_path)) == (way == "mapped")


def test_weights_that_were_replaced_stay_in_memory(native: CpuKernelSet, tmp_path: Path) -> None:
    executable, _ = started(native, tmp_path, "mapped", execution_of())
    other = graph_of_pages(seed=4)[0].weights
    name = next(each for each in other if other[each].layout is Layout.BF16)
    executable.stage_weights({name: other[name]}).commit()
    expected = logits_of(executable, plain_step(NUM_TOKENS)).copy()
    executable.sleep(keep_weights=True)
    left = resident(executable._weights.ranges())
    executable.wake_weights(None)
    executable.wake_caches()
    assert 0 < left < resident(executable._weights.ranges())
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), expected)


def test_a_kept_file_of_other_weights_is_not_one_of_these(native: CpuKernelSet, tmp_path: Path) -> None:
    executable, weights = started(native, tmp_path, "kept", execution_of())
    wait_for_keepers()
    expected = logits_of(executable, plain_step(NUM_TOKENS)).copy()
    (kept,) = tmp_path.glob("*.packed")
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    executable.sleep(keep_weights=True)
    assert resident(executable._weights.ranges()) > 100
    executable.wake_weights(None)
    executable.sleep(keep_weights=False)
    executable.wake_weights(weights)
    executable.wake_caches()
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), expected)


def test_the_file_may_go_away_while_it_sleeps(native: CpuKernelSet, tmp_path: Path) -> None:
    executable, _ = started(native, tmp_path, "copied", execution_of())
    expected = logits_of(executable, plain_step(NUM_TOKENS)).copy()
    executable.sleep(keep_weights=True)
    (kept,) = tmp_path.glob("*.packed")
    kept.unlink()
    executable.wake_weights(None)
    executable.wake_caches()
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), expected)


def test_without_the_memory_it_sleeps_on_and_wakes_later(
    native: CpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable, weights = started(native, tmp_path, "packed", execution_of())
    expected = logits_of(executable, plain_step(NUM_TOKENS)).copy()
    executable.sleep(keep_weights=False)
    with monkeypatch.context() as patch:
        patch.setattr("appliance.kernels.cpu.sleeping.free_bytes", lambda: 1 << 12)
        with pytest.raises(ExecutableError, match=r"the weights take .*, and 4.00 KiB of memory can be had"):
            executable.wake_weights(weights)
    executable.wake_weights(weights)
    executable.wake_caches()
    np.testing.assert_array_equal(logits_of(executable, plain_step(NUM_TOKENS)), expected)


def test_a_head_that_reads_weights_of_a_model_sleeps_beside_it(native: CpuKernelSet, tmp_path: Path) -> None:
    executable, weights = started(native, tmp_path, "packed", execution_of())
    graph, program = graph_of_pages()
    lent = {name: name for name in program.matrices()}
    own = {name: weight for name, weight in graph.weights.items() if name not in lent}
    beside = executable.bind_beside(program, own, execution_of(), lent)
    expected = logits_of(beside, plain_step(NUM_TOKENS)).copy()
    for each in (executable, beside):
        each.sleep(keep_weights=False)
    executable.wake_weights(weights)
    beside.wake_weights(own)
    for each in (executable, beside):
        each.wake_caches()
        np.testing.assert_array_equal(logits_of(each, plain_step(NUM_TOKENS)), expected)
    beside.close()
