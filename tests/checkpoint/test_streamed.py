"""Tensors that threads read past the page cache: the bytes that a mapping has, within bounded memory."""

import itertools
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint import streamed as module
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import open_tensors
from appliance.checkpoint.streamed import StreamedReader

from .files import write_folder
from .test_folder import CONFIG
from .test_reader import ARRAYS

RNG = np.random.default_rng(0)
LARGE: dict[str, np.ndarray] = {f"w{n}": RNG.standard_normal((257 + n, 129), dtype=np.float32) for n in range(7)}


def folder(tmp_path: Path) -> ModelFacts:
    return read_model_facts(write_folder(tmp_path, CONFIG, dict[str, np.ndarray](ARRAYS) | LARGE))


def streamed(facts: ModelFacts, num_threads: int = 3, memory_bytes: int = 1 << 30) -> StreamedReader:
    return StreamedReader(Path(facts.root), facts.tensors, num_threads, memory_bytes)


@pytest.mark.parametrize("memory_bytes", [1, 300_000, 1 << 30])
def test_the_bytes_are_those_of_a_mapping(tmp_path: Path, memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 8192)
    facts = folder(tmp_path)
    names = [tensor.name for tensor in facts.tensors] * 2
    with open_tensors(facts) as mapped, streamed(facts, memory_bytes=memory_bytes) as reader:
        for name, following in zip(names, [*names[1:], names[0]], strict=True):
            reader.will_need(following)
            found = reader.read(name)
            assert found.tobytes() == mapped.read(name).tobytes()
            assert not found.flags.writeable
            kept = sum(len(each.memory) for each in reader._buffers.values())
            assert kept <= max(memory_bytes, len(reader._buffers[name].memory))


def test_several_threads_may_read_and_views_outlive_the_reader(tmp_path: Path) -> None:
    facts = folder(tmp_path)
    with streamed(facts, memory_bytes=300_000) as reader, ThreadPoolExecutor(4) as pool:
        found = dict(zip(LARGE, pool.map(reader.read, LARGE), strict=True))
    assert all(np.array_equal(found[name].view(np.float32).reshape(LARGE[name].shape), LARGE[name]) for name in LARGE)


def test_a_tensor_is_forgotten_with_its_last_byte(tmp_path: Path) -> None:
    with streamed(folder(tmp_path)) as reader:
        reader.read("w0")
        reader.release("w0", 0, 4096)
        assert "w0" in reader._buffers
        reader.release("w0", 4096, LARGE["w0"].nbytes)
        assert "w0" not in reader._buffers


def test_nothing_is_read_twice_where_memory_is_less_than_a_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of many tensors, of which each begins to be read with the one before it, in the room that is left."""
    monkeypatch.setattr(module, "PIECE_BYTES", 8192)
    begun: list[tuple[int, int]] = []
    fill = module._fill

    def filled(descriptor: int, memory: mmap.mmap, first: int, start: int) -> None:
        begun.append((first, start))
        fill(descriptor, memory, first, start)

    monkeypatch.setattr(module, "_fill", filled)
    weights = [["w0", "w1", "w2", "w3"], ["w4", "w5", "w6"], []]
    with streamed(folder(tmp_path), memory_bytes=300_000) as reader:
        for own, following in itertools.pairwise(weights):
            for name in (*own, *following):
                reader.will_need(name)
            assert set(own[:2]) <= reader._buffers.keys(), "what is read first is there"
            for name in own:
                assert reader.read(name).tobytes() == LARGE[name].tobytes()
                assert sum(len(each.memory) for each in reader._buffers.values()) <= 300_000
    assert len(begun) == len(set(begun))


def test_what_is_read_is_kept_and_what_is_forgotten_is_not_read_on(tmp_path: Path) -> None:
    with streamed(folder(tmp_path), memory_bytes=300_000) as reader:
        reader.read("w0")
        reader.will_need("w1")
        reader._buffers["w0"].num_readers += 1  # as of another thread that waits for it
        ahead = reader._buffers["w1"]
        waiting: Future[None] = Future()
        ahead.pieces.append(waiting)
        reader.read("w2")
        assert reader._buffers.keys() == {"w0", "w2"}
        assert waiting.cancelled()


def test_it_does_without_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open

    def refusing(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return original(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    with streamed(folder(tmp_path)) as reader:
        assert reader.read("w1").tobytes() == LARGE["w1"].tobytes()


def test_faults(tmp_path: Path) -> None:
    facts = folder(tmp_path)
    with streamed(facts) as reader, pytest.raises(CheckpointError, match="no tensor 'zz'"):
        reader.read("zz")
    weights = tmp_path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 16)
    last = max(facts.tensors, key=lambda tensor: tensor.offset_bytes).name
    with streamed(facts) as reader, pytest.raises(CheckpointError, match="after the end of the file"):
        reader.will_need(last)
    weights.unlink()
    with streamed(facts) as reader, pytest.raises(CheckpointError, match="cannot be opened"):
        reader.read("w0")
