import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf import open_gguf
from appliance.checkpoint.gguf_values import LazyArray

from .files import entry, gguf_bytes, llama_tensors, tensor, text, write_gguf

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_agrees_with_the_reference_reader(tmp_path: Path) -> None:
    weights = llama_tensors()
    big = np.random.default_rng(1).standard_normal((4, 256), dtype=np.float32)
    quantized = {
        f"blk.0.x.{kind.name}": (big, kind) for kind in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0)
    }
    path = write_gguf(tmp_path / "m.gguf", quantized=quantized)
    reference = {entry.name: entry for entry in gguf.GGUFReader(path).tensors}
    with open_gguf(path) as file:
        assert {found.name for found in file.tensors} == set(reference)
        for found in file.tensors:
            expected = reference[found.name]
            assert list(found.shape) == list(reversed(expected.shape.tolist()))
            assert (found.offset_bytes, found.size_bytes) == (expected.data_offset, expected.n_bytes)
            assert found.storage == expected.tensor_type.name.lower()
            if found.name in weights:
                assert file.read(found) == weights[found.name].tobytes()


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_metadata_type(tmp_path: Path, version: int) -> None:
    formats = ["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d"]
    entries = [entry(f"k{kind}", kind, struct.pack(form, 1)) for kind, form in enumerate(formats) if form]
    entries.append(entry("text", STRING, text("naïve")))
    entries.append(entry("words", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("") + text("bc")))
    entries.append(entry("numbers", ARRAY, struct.pack("<IQ3I", U32, 3, 7, 8, 9)))
    with open_gguf(write(tmp_path / "m.gguf", gguf_bytes(*entries, version=version))) as file:
        assert file.version == version
        assert [file.metadata[f"k{kind}"] for kind, form in enumerate(formats) if form] == [1] * 11
        assert file.metadata["text"] == "naïve"
        words, numbers = file.metadata["words"], file.metadata["numbers"]
        assert isinstance(words, LazyArray)
        assert isinstance(numbers, LazyArray)
        assert (list(words), words[-1], words[0:2], len(words)) == (["a", "", "bc"], "bc", ["a", ""], 3)
        assert (list(numbers), numbers[1]) == ([7, 8, 9], 8)
        with pytest.raises(IndexError):
            words[3]


def test_finds_a_string_only_where_it_is_a_whole_element(tmp_path: Path) -> None:
    inner = text("bc").decode()  # the bytes of an element, hidden inside another element
    words = ["x" + inner, "abc", "bc", "c"]
    raw = b"".join(text(word) for word in words)
    array = entry("words", ARRAY, struct.pack("<IQ", STRING, len(words)) + raw)
    with open_gguf(write(tmp_path / "m.gguf", gguf_bytes(array))) as file:
        found = file.metadata["words"]
        assert isinstance(found, LazyArray)
        assert [found.find(word) for word in (*words, "b", "")] == [0, 1, 2, 3, None, None]


def test_alignment_is_honoured(tmp_path: Path) -> None:
    content = gguf_bytes(entry("general.alignment", U32, struct.pack("<I", 64)), tensors=(tensor("a", (4,)),))
    content = content.ljust(128, b"\0") + bytes(16)
    with open_gguf(write(tmp_path / "m.gguf", content)) as file:
        assert file.tensors[0].offset_bytes == 128


HUGE = 1 << 62
HOSTILE = {
    "empty": (b"", "empty"),
    "magic": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "cut after magic": (b"GGUF", "ends early"),
    "version 1": (gguf_bytes(version=1), "version 1 is not read"),
    "big endian": (gguf_bytes(version=3 << 24), "big-endian"),
    "many tensors": (gguf_bytes(counts=(HUGE, 0)), "tensors; at most"),
    "many entries": (gguf_bytes(counts=(0, HUGE)), "metadata entries; at most"),
    "long key": (gguf_bytes(struct.pack("<Q", HUGE), counts=(0, 1)), "a name of"),
    "long string": (gguf_bytes(entry("k", STRING, struct.pack("<Q", HUGE))), "ends early"),
    "long number array": (gguf_bytes(entry("k", ARRAY, struct.pack("<IQ", U32, HUGE))), "ends early"),
    "long string array": (gguf_bytes(entry("k", ARRAY, struct.pack("<IQ", STRING, HUGE))), "cannot fit"),
    "string runs out of array": (
        gguf_bytes(entry("k", ARRAY, struct.pack("<IQQQ", STRING, 2, (1 << 64) - 9, 1))),
        "ends early",
    ),
    "array of arrays": (gguf_bytes(entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))), "metadata type 9"),
    "unknown type": (gguf_bytes(entry("k", 77, b"")), "metadata type 77"),
    "key twice": (gguf_bytes(entry("k", BOOL, b"\1"), entry("k", BOOL, b"\1")), "appears twice"),
    "key not text": (gguf_bytes(struct.pack("<Q", 1) + b"\xff" + struct.pack("<I", 7) + b"\1"), "not UTF-8"),
    "alignment zero": (gguf_bytes(entry("general.alignment", U32, bytes(4))), "general.alignment is 0"),
    "alignment three": (gguf_bytes(entry("general.alignment", U32, struct.pack("<I", 3))), "power of two"),
    "alignment text": (gguf_bytes(entry("general.alignment", STRING, text("32"))), "general.alignment"),
    "no dimensions": (gguf_bytes(tensors=(tensor("a", ()),)), "0 dimensions"),
    "many dimensions": (gguf_bytes(tensors=(tensor("a", (1,) * 5),)), "5 dimensions"),
    "zero size": (gguf_bytes(tensors=(tensor("a", (0, 4)),)), "impossible shape"),
    "huge size": (gguf_bytes(tensors=(tensor("a", (HUGE, HUGE)),)), "impossible shape"),
    "past the end": (gguf_bytes(tensors=(tensor("a", (4,)),)), "after the end of the file"),
    "offset overflow": (gguf_bytes(tensors=(tensor("a", (4,), offset=HUGE),), data=bytes(16)), "after the end"),
    "offset unaligned": (gguf_bytes(tensors=(tensor("a", (4,), offset=8),), data=bytes(64)), "not a multiple of 32"),
    "overlap": (gguf_bytes(tensors=(tensor("a", (16,)), tensor("b", (16,), offset=32)), data=bytes(128)), "overlap"),
    "name twice": (gguf_bytes(tensors=(tensor("a", (4,)), tensor("a", (4,), offset=32)), data=bytes(64)), "twice"),
    "row not whole": (gguf_bytes(tensors=(tensor("a", (33,), kind=2),), data=bytes(64)), "does not divide"),
    "type not read": (gguf_bytes(tensors=(tensor("a", (256,), kind=40),), data=bytes(256)), "NVFP4"),
    "type unknown": (gguf_bytes(tensors=(tensor("a", (4,), kind=999),), data=bytes(64)), "number 999"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_in_words(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    with pytest.raises(CheckpointError, match=words):
        open_gguf(write(tmp_path / "m.gguf", content))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "whole.gguf"
    if not path.exists():
        write_gguf(path, tensors={"token_embd.weight": np.zeros((4, 8), np.float32)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, len(content))) :]
    damaged = write(tmp_path / "damaged.gguf", bytes(content))
    with contextlib.suppress(CheckpointError):
        open_gguf(damaged).close()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be opened"):
        open_gguf(tmp_path / "nowhere.gguf")
