import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.safetensors import INDEX_NAME, read_folder, read_header

from .files import write_raw_safetensors, write_safetensors


def test_agrees_with_the_reference_writer(tmp_path: Path) -> None:
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(4, dtype=np.int64), "c": np.float16(3)}
    save_file({name: np.asarray(array) for name, array in arrays.items()}, tmp_path / "m.safetensors")
    content = (tmp_path / "m.safetensors").read_bytes()
    found = {tensor.name: tensor for tensor in read_header(tmp_path, "m.safetensors").tensors}
    assert {name: (tensor.storage, tensor.shape) for name, tensor in found.items()} == {
        "a": ("i64", (4,)), "b": ("f32", (2, 3)), "c": ("f16", ()),
    }  # fmt: skip
    for name, tensor in found.items():
        stored = content[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        assert stored == np.asarray(arrays[name]).tobytes()


def shards(root: Path, parts: list[dict[str, np.ndarray]], weight_map: dict[str, str] | None = None) -> Path:
    names = [f"model-{n:05d}-of-{len(parts):05d}.safetensors" for n in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        write_safetensors(root / name, part)
    where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    (root / INDEX_NAME).write_text(
        json.dumps({"metadata": {}, "weight_map": where if weight_map is None else weight_map})
    )
    return root


ONE, TWO = {"a": np.zeros(2, np.float32)}, {"b": np.ones((3, 2), np.float16)}


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    tensors, headers = read_folder(shards(tmp_path, [ONE, TWO]))
    assert [(tensor.name, tensor.file) for tensor in tensors] == [
        ("a", "model-00001-of-00002.safetensors"),
        ("b", "model-00002-of-00002.safetensors"),
    ]
    assert len(headers) == 3


FIRST = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("parts", "weight_map", "words"),
    [
        ([ONE, TWO], {"a": FIRST, "b": FIRST}, "'b' should be in"),
        ([ONE, TWO], {"a": FIRST, "ghost": FIRST}, "'ghost' should be in"),
        ([ONE, ONE], {"a": FIRST, "x": "model-00002-of-00002.safetensors"}, "is also in"),
        ([ONE, TWO], {"a": "nowhere.safetensors"}, "cannot be opened"),
        ([ONE, TWO], {"a": "../secret.safetensors"}, "not a file of this folder"),
        ([ONE, TWO], {"a": 7}, "not a file of this folder"),
        ([ONE, TWO], {}, "weight_map is not"),
    ],
)
def test_an_index_that_lies_is_refused(
    tmp_path: Path, parts: list[dict[str, np.ndarray]], weight_map: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_folder(shards(tmp_path, parts, weight_map))


def one(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


HOSTILE: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 0, "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, "not valid JSON"),
    "deep": (b"[" * 100_000, 0, "not valid JSON"),
    "a list": ([], 0, "not a JSON object"),
    "name twice": (b'{"a": 1, "a": 2}', 0, "appears twice"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8, "must have dtype"),
    "a number": ({"a": 3}, 8, "must have dtype"),
    "three offsets": (one(data_offsets=[0, 8, 9]), 8, "must have dtype"),
    "unknown dtype": (one(dtype="F4"), 8, "dtype 'F4'"),
    "list dtype": (one(dtype=["F32"]), 8, "dtype"),
    "negative size": (one(shape=[-2]), 8, "impossible sizes"),
    "float size": (one(shape=[2.0]), 8, "impossible sizes"),
    "huge size": (one(shape=[1 << 60]), 8, "impossible sizes"),
    "many dimensions": (one(shape=[1] * 9), 8, "impossible sizes"),
    "backwards": (one(data_offsets=[8, 0]), 8, "its offsets give -8"),
    "wrong size": (one(shape=[3]), 8, "needs 12 bytes"),
    "hole at the start": (one(data_offsets=[4, 12]), 12, "a hole"),
    "hole": (one() | {"b": {"dtype": "U8", "shape": [1], "data_offsets": [9, 10]}}, 10, "a hole"),
    "overlap": (one() | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, 8, "an overlap"),
    "cut": (one(), 4, "the file at"),
    "too long": (one(), 9, "the file at"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_in_words(tmp_path: Path, name: str) -> None:
    header, size, words = HOSTILE[name]
    write_raw_safetensors(tmp_path / "m.safetensors", header, bytes(size))
    with pytest.raises(CheckpointError, match=words):
        read_header(tmp_path, "m.safetensors")


@pytest.mark.parametrize("content", [b"", b"\1\2", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 3) + b"{}"])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="claims a header"):
        read_header(tmp_path, "m.safetensors")


def test_the_weight_file_is_never_guessed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors file"):
        read_folder(tmp_path)
    write_safetensors(tmp_path / "x.safetensors", ONE)
    assert read_folder(tmp_path)[0][0].file == "x.safetensors"
    write_safetensors(tmp_path / "y.safetensors", TWO)
    with pytest.raises(CheckpointError, match="2 safetensors files"):
        read_folder(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", TWO)
    assert read_folder(tmp_path)[0][0].file == "model.safetensors"
