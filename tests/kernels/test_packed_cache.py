"""Packed weights that are kept on disk are the same weights, and a file that is not quite right is never used."""

import fcntl
import gc
import os
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.packed_file import write_packed
from appliance.kernels.layout import CanonicalWeight, Layout, WeightPieces
from appliance.kernels.packed_cache import NotKeptError, PackedCache
from appliance.kernels.reports import WeightsReport
from appliance.program.operators import Linear, RmsNorm, StepProgram
from tests.kernels.harness import Graph, execution_of, logits_of, plain_step, random_weight, whole

NUM_TOKENS, WIDTH = 8, 64
MANY = 1 << 30


def graph_of_all_layouts() -> tuple[Graph, StepProgram]:
    """A norm, a table and a matrix of each layout, summed."""
    rng = np.random.default_rng(3)
    graph = Graph()
    x = graph.given(rng.standard_normal((NUM_TOKENS, WIDTH)).astype(np.float32))
    graph.add(RmsNorm(x, graph.vector(rng.standard_normal(WIDTH).astype(np.float32)), x, 1e-6))
    out = graph.slot(40)
    kinds: list[tuple[Layout, str]] = [(layout, "none") for layout in Layout if layout is not Layout.INT4]
    kinds += [(Layout.INT8, "free"), (Layout.INT4, "free"), (Layout.INT4, "symmetric")]
    for index, (layout, offset) in enumerate(kinds):
        name = graph.weight(random_weight(rng, layout, 40, WIDTH, 32, offset))
        graph.add(Linear(whole(x), name, whole(out), accumulate=index > 0))
    return graph, graph.program(out)


def cache_in(folder: Path, identity: str = "these weights", max_bytes: int = MANY, spare_bytes: int = 0) -> PackedCache:
    return PackedCache(folder, identity, "tiny", max_bytes, min_bytes=0, spare_bytes=spare_bytes)


def wait_for_keepers() -> None:
    for thread in threading.enumerate():
        if thread.name == "keep-weights" and thread.ident is not None:  # one that has not begun is another engine's
            thread.join()


def bind(native: CpuKernelSet, cache: PackedCache | None) -> CpuExecutable:
    graph, program = graph_of_all_layouts()
    executable = native.bind(program, graph.weights, execution_of(), cache)
    wait_for_keepers()
    return executable


def start(native: CpuKernelSet, cache: PackedCache) -> tuple[np.ndarray, WeightsReport]:
    """One life of an engine: its logits, and where its weights came from."""
    executable = bind(native, cache)
    logits = logits_of(executable, plain_step(NUM_TOKENS))
    executable.close()
    assert cache.report is not None
    return logits, cache.report


def test_a_system_without_threads_keeps_nothing_and_serves(
    native: CpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("appliance.kernels.cpu.packed_keeper.PackedKeeper.start", refuse)
    _, report = start(native, cache_in(tmp_path))
    assert report.origin == "checkpoint"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def mapped_files(folder: Path) -> list[Path]:
    found = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    return [Path(name) for name in found]


@pytest.mark.parametrize("copies", [False, True], ids=["mapped", "copied"])
def test_adopted_weights_give_the_same_logits(native: CpuKernelSet, tmp_path: Path, copies: bool) -> None:
    without = bind(native, None)
    expected = logits_of(without, plain_step(NUM_TOKENS))
    first, packed = start(native, cache_in(tmp_path))
    second = cache_in(tmp_path)
    second.copies = copies
    again = bind(native, second)
    assert mapped_files(tmp_path) == ([] if copies else list(tmp_path.iterdir()))
    assert second.report is not None
    assert (packed.origin, second.report.origin) == ("checkpoint", "cache")
    assert again.memory_bytes == without.memory_bytes
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(logits_of(again, plain_step(NUM_TOKENS)), expected)
    assert packed.reason == "nothing is kept"
    assert Path(second.report.file).parent == tmp_path


def test_an_executable_runs_on_a_removed_file_and_lets_go_of_it(native: CpuKernelSet, tmp_path: Path) -> None:
    start(native, cache_in(tmp_path))
    executable = bind(native, cache_in(tmp_path))
    (kept,) = tmp_path.glob("*.packed")
    kept.unlink()
    executable.run(plain_step(NUM_TOKENS))
    assert mapped_files(tmp_path)
    executable.close()
    del executable
    gc.collect()
    assert not mapped_files(tmp_path)


def truncated(data: bytearray) -> bytearray:
    return data[:-100]


def cut_to_nothing(data: bytearray) -> bytearray:
    return data[:10]


def damaged_header(data: bytearray) -> bytearray:
    data[80] ^= 1
    return data


def damaged_weight(data: bytearray) -> bytearray:
    data[-1] ^= 0x40
    return data


def zeroed_page(data: bytearray) -> bytearray:
    data[-200:-100] = bytes(100)
    return data


def later_format(data: bytearray) -> bytearray:
    struct.pack_into("<I", data, 8, 99)
    return data


def other_magic(data: bytearray) -> bytearray:
    data[:8] = b"SOMEFILE"
    return data


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (truncated, "bytes, not"),
        (cut_to_nothing, "cut off"),
        (damaged_header, "header is damaged"),
        (damaged_weight, "are damaged"),
        (zeroed_page, "are damaged"),
        (later_format, "format version 99"),
        (other_magic, "no file of packed weights"),
    ],
)
def test_a_bad_file_is_made_anew(
    native: CpuKernelSet, tmp_path: Path, change: Callable[[bytearray], bytearray], reason: str
) -> None:
    expected, _ = start(native, cache_in(tmp_path))
    (kept,) = tmp_path.glob("*.packed")
    whole_file = kept.read_bytes()
    kept.write_bytes(change(bytearray(whole_file)))
    logits, report = start(native, cache_in(tmp_path))
    assert report.origin == "checkpoint"
    assert reason in report.reason
    np.testing.assert_array_equal(logits, expected)
    assert kept.read_bytes() == whole_file
    assert start(native, cache_in(tmp_path))[1].origin == "cache"


def test_a_file_of_other_weights_is_not_used(native: CpuKernelSet, tmp_path: Path) -> None:
    start(native, cache_in(tmp_path, "other weights"))
    (other,) = tmp_path.glob("*.packed")
    start(native, cache_in(tmp_path))
    (mine,) = set(tmp_path.glob("*.packed")) - {other}
    mine.write_bytes(other.read_bytes())
    _, report = start(native, cache_in(tmp_path))
    assert report.reason.endswith("it holds other weights")


def test_each_level_and_version_has_a_file_of_its_own(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    keys = {cache.key("avx2", 1), cache.key("avx512", 1), cache.key("avx2", 2), cache_in(tmp_path, "b").key("avx2", 1)}
    assert len(keys) == 4


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limits files to 4 KiB, which a writer sees as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_refuses_costs_nothing(native: CpuKernelSet, tmp_path: Path) -> None:
    executable = bind(native, cache_in(tmp_path))
    executable.run(plain_step(NUM_TOKENS))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_nothing(native: CpuKernelSet, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, report = start(native, cache_in(tmp_path / "file" / "packed"))
    assert report.origin == "checkpoint"


def test_the_disk_is_not_filled(native: CpuKernelSet, tmp_path: Path) -> None:
    start(native, cache_in(tmp_path, spare_bytes=1 << 60))
    assert list(tmp_path.iterdir()) == []


def write(cache: PackedCache, key: str, size: int) -> Path:
    path = cache.path(key)
    with cache.writing(path, size) as descriptor:
        os.pwrite(descriptor, key.encode(), 0)
    return path


def test_the_file_used_longest_ago_makes_room(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, max_bytes=3000)
    first, second = write(cache, "1", 1000), write(cache, "2", 1000)
    third = write(cache, "3", 1000)
    for age, path in enumerate((second, third, first)):
        os.utime(path, (age, age))
    cache.touch(second)
    fourth = write(cache, "4", 1000)
    assert set(tmp_path.iterdir()) == {first, second, fourth}
    with pytest.raises(NotKeptError, match="may be kept"):
        write(cache, "5", 3001)
    assert fourth.exists()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    path = cache.path("key")
    with cache.writing(path, 100) as descriptor:
        with pytest.raises(NotKeptError, match="another engine is writing"), cache.writing(path, 100):
            pytest.fail("two writers")
        os.pwrite(descriptor, b"whole", 0)
        assert not path.exists()
    assert path.read_bytes().startswith(b"whole")
    with pytest.raises(NotKeptError, match="has kept"), cache.writing(path, 100):
        pytest.fail("written twice")


def test_what_a_dead_writer_left_is_taken_over_or_removed(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    mine, other = cache.path("mine").with_suffix(".part"), cache.path("other").with_suffix(".part")
    for part in (mine, other):
        part.write_bytes(b"x" * 5000)
    path = write(cache, "mine", 100)
    assert path.stat().st_size == 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_living_writer_keeps_its_file(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    other = cache.path("other").with_suffix(".part")
    with other.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(cache, "mine", 100)
        assert other.exists()


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    with pytest.raises(RuntimeError), cache.writing(cache.path("key"), 100):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_ends_stops_writing(
    native: CpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless(*arguments: Any) -> None:
        begun.set()
        while arguments[-1]():
            pass
        write_packed(*arguments)

    monkeypatch.setattr("appliance.kernels.cpu.packed_keeper.write_packed", endless)
    graph, program = graph_of_all_layouts()
    executable = native.bind(program, graph.weights, execution_of(), cache_in(tmp_path))
    begun.wait()
    executable.close()
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_reaches_the_disk_bit_by_bit(
    native: CpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.kernels.cpu.packed_file._PIECE", 1000)
    monkeypatch.setattr("appliance.kernels.cpu.packed_file._UNSYNCED", 2000)
    first, _ = start(native, cache_in(tmp_path))
    second, report = start(native, cache_in(tmp_path))
    assert report.origin == "cache"
    np.testing.assert_array_equal(first, second)


def test_two_engines_at_once_keep_one_good_file(native: CpuKernelSet, tmp_path: Path) -> None:
    reports: list[WeightsReport] = []
    engines = [threading.Thread(target=lambda: reports.append(start(native, cache_in(tmp_path))[1])) for _ in range(4)]
    for engine in engines:
        engine.start()
    for engine in engines:
        engine.join()
    assert len(reports) == 4
    assert len(list(tmp_path.iterdir())) == 1
    assert start(native, cache_in(tmp_path))[1].origin == "cache"


class Pieces(WeightPieces):
    """Weights in pieces of whole panels."""

    def __init__(self, weights: dict[str, CanonicalWeight]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> CanonicalWeight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def shape(self, name: str) -> tuple[int, int]:
        return self._weights[name].out_features, self._weights[name].in_features

    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        weight = self._weights[name]
        cut = [None if a is None else a[start:stop] for a in (weight.data, weight.scale, weight.offset)]
        assert cut[0] is not None
        return CanonicalWeight(
            weight.layout, stop - start, weight.in_features, cut[0], cut[1], cut[2], weight.group_size
        )


def kept_bytes(
    native: CpuKernelSet, weights: dict[str, CanonicalWeight] | Pieces, program: StepProgram, folder: Path
) -> bytes:
    executable = native.bind(program, weights, execution_of(), cache_in(folder))
    wait_for_keepers()
    executable.close()
    (kept,) = folder.glob("*.packed")
    return kept.read_bytes()


@pytest.mark.parametrize("needs_offset", [None, 0, -1], ids=["nowhere", "first", "last"])
def test_pieces_are_packed_like_the_whole(
    native: CpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_offset: int | None
) -> None:
    """The row that needs an offset may be anywhere."""
    monkeypatch.setattr("appliance.kernels.cpu.packing.PIECE_ELEMENTS", 32 * WIDTH)
    graph = Graph()
    x, out = graph.given(np.zeros((2, WIDTH), np.float32)), graph.slot(200)
    weight = random_weight(np.random.default_rng(4), Layout.INT4, 200, WIDTH, 32, "symmetric")
    assert weight.offset is not None
    if needs_offset is not None:
        weight.offset[needs_offset] = 0.5
    graph.add(Linear(whole(x), graph.weight(weight), whole(out)))
    program = graph.program(out)
    at_once = kept_bytes(native, graph.weights, program, tmp_path / "whole")
    assert kept_bytes(native, Pieces(graph.weights), program, tmp_path / "pieces") == at_once
