"""Weights come through a ring of the host's memory, of which no piece is filled before the device has read it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.weight_stream import WeightStream
from appliance.program.device_memory import RING_PIECES
from tests.kernels.gpu.recording import recording

ARRAYS = [
    np.arange(300, dtype=np.float32).reshape(20, 15), np.arange(7, dtype=np.uint8), np.zeros((0, 4), np.float16),
    np.arange(24, dtype=np.int16).reshape(4, 6).T, np.arange(64, dtype=np.float16),
]  # fmt: skip


def test_what_arrives_is_what_was_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording(monkeypatch) as (device, log):
        stream = WeightStream(device, piece_bytes=100)
        log.is_open = True
        found = [stream.put(array) for array in ARRAYS]
        notes = log.take()
        log.is_open = False
    for array, tensor in zip(ARRAYS, found, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    pieces = sum(-(-array.nbytes // 100) for array in ARRAYS)
    copies = [note for note in notes if note in ("host to device", "mark", "wait for a mark")]
    assert copies.count("host to device") == copies.count("mark") == pieces > 10
    assert copies.count("wait for a mark") == pieces - RING_PIECES
    first = copies.index("wait for a mark")
    assert copies[:first] == ["host to device", "mark"] * RING_PIECES
    assert copies[first:] == ["wait for a mark", "host to device", "mark"] * (pieces - RING_PIECES)


def test_tensors_and_mapped_files_are_sent_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(range(200)))
    mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
    halves = torch.arange(40).to(torch.bfloat16).reshape(5, 8)
    with recording(monkeypatch) as (device, _):
        stream = WeightStream(device, piece_bytes=64)
        assert torch.equal(stream.moved(halves), halves)
        np.testing.assert_array_equal(stream.put(mapped).numpy(), mapped)


def test_a_cpu_has_no_ring() -> None:
    stream = WeightStream(Device(torch.device("cpu")))
    np.testing.assert_array_equal(stream.put(ARRAYS[0]).numpy(), ARRAYS[0])
    assert stream._pieces == []
