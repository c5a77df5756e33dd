"""Memory of the cache that is resident before it is used: which pages, and that nothing in them changes."""

import contextlib
import ctypes
import mmap

import numpy as np
import pytest

from appliance.kernels.cpu import memory as memory_module
from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.memory import MADV_POPULATE_WRITE, MappedMemory
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, execution_of, logits_of

PAGE = mmap.PAGESIZE
NUM_BLOCKS, NUM_LAYERS = 64, 3


@pytest.fixture
def can_populate() -> None:
    with mmap.mmap(-1, PAGE) as probe:
        try:
            probe.madvise(MADV_POPULATE_WRITE)
        except OSError:
            pytest.skip("this system cannot make memory resident ahead of its use")


def in_small_pages(memory: MappedMemory) -> MappedMemory:
    """The first touch of a huge page would make its neighbours resident as well."""
    with contextlib.suppress(OSError):  # a system without them
        memory._map.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def resident(memory: MappedMemory) -> set[int]:
    """The pages of a mapping that are in memory."""
    library = ctypes.CDLL(None, use_errno=True)
    flags = (ctypes.c_ubyte * (memory.size_bytes // PAGE))()
    address, size = ctypes.c_void_p(memory.address), ctypes.c_size_t(memory.size_bytes)
    assert library.mincore(address, size, flags) == 0, ctypes.get_errno()
    return {page for page, flag in enumerate(flags) if flag & 1}


def pages(start: int, size_bytes: int) -> set[int]:
    return set(range(start // PAGE, (start + size_bytes - 1) // PAGE + 1))


def with_layers(native: CpuKernelSet, shape: KvShape, kv_dtype: str) -> CpuExecutable:
    graph = Graph()
    program = graph.program(graph.given(np.zeros((4, 32), np.float32)), [shape] * NUM_LAYERS)
    bounds = execution_of(num_blocks=NUM_BLOCKS, kv_dtype=kv_dtype)
    return native.bind(program, graph.weights, bounds)


@pytest.mark.usefixtures("can_populate")
@pytest.mark.parametrize("shape", [KvShape(2, 64, 64), KvShape(1, 16, 16), KvShape(3, 80, 80)], ids=str)
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_a_block_becomes_resident_in_every_layer(native: CpuKernelSet, shape: KvShape, kv_dtype: str) -> None:
    """Keys of a layer, its values, then the next layer's: each a whole number of blocks."""
    executable = with_layers(native, shape, kv_dtype)
    memory = in_small_pages(executable._kv_cache.memory)
    assert resident(memory) == set()
    part = executable.memory_bytes["kv_cache"] // (2 * NUM_LAYERS)
    block_bytes = part // NUM_BLOCKS
    expected: set[int] = set()
    for block in (5, NUM_BLOCKS - 1, 0, 5):
        executable.prefault(block)
        for start in range(0, 2 * NUM_LAYERS * part, part):
            expected |= pages(start + block * block_bytes, block_bytes)
        assert resident(memory) == expected


@pytest.mark.usefixtures("can_populate")
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16"])
def test_a_step_finds_its_memory_there_and_what_was_written_stays(native: CpuKernelSet, kv_dtype: str) -> None:
    dim = 64
    graph = Graph()
    qkv = graph.given(np.random.default_rng(1).standard_normal((50, 3 * dim)).astype(np.float32))
    out = graph.slot(dim)
    graph.add(KvWrite(Span(qkv, dim, dim), Span(qkv, 2 * dim, dim), 0, 1, dim))
    graph.add(PagedAttention(Span(qkv, 0, dim), out, 0, 1, 1, dim, dim**-0.5))
    bounds = execution_of(num_blocks=NUM_BLOCKS, kv_dtype=kv_dtype)
    executable = native.bind(graph.program(out, [KvShape(1, dim, dim)]), graph.weights, bounds)
    memory = in_small_pages(executable._kv_cache.memory)
    for block in (3, 40):
        executable.prefault(block)
    before = resident(memory)
    executable.run(batch_step([list(range(20))], [0], [[3, 40]], 16))
    assert resident(memory) == before, "the step met a page that was not there"
    after = logits_of(executable, batch_step([[7]], [19], [[3, 40]], 16))
    written = ctypes.string_at(memory.address, memory.size_bytes)
    assert any(written)
    for block in range(NUM_BLOCKS):
        executable.prefault(block)
    assert ctypes.string_at(memory.address, memory.size_bytes) == written
    np.testing.assert_array_equal(logits_of(executable, batch_step([[7]], [19], [[3, 40]], 16)), after)


def test_a_system_that_cannot_leaves_memory_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "MADV_POPULATE_WRITE", 9999)
    memory = in_small_pages(MappedMemory(4 * PAGE))
    memory.prefault(PAGE, PAGE)
    assert resident(memory) == set()
