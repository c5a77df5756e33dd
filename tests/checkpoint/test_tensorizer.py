"""Files of tensorizer: the tensors are those that it wrote, and a broken index is one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import TensorReader, open_tensors
from appliance.checkpoint.tensorizer import read_tensors
from tests.checkpoint.tensorizer_files import floats, write_tensors, written

from .test_folder import CONFIG


def test_a_file_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "model.tensors").write_bytes(written())
    tensors, headers = read_tensors(tmp_path)
    found = {each.name: (each.storage, each.shape) for each in tensors}
    assert found == {
        "a.weight": ("f32", (2, 3)), "b": ("bf16", (4,)), "c": ("i64", (1, 2)), "d": ("f16", (3,)),
        "e": ("f8_e4m3", (4,)), "s": ("f32", ()),
    }  # fmt: skip
    assert len(headers) == 1
    with TensorReader(tmp_path, tensors) as reader:
        assert np.array_equal(reader.array("a.weight"), floats(2, 3))
        assert reader.array("b").tolist() == [0, 0x3F80, 0x4000, 0x4040]
        assert reader.array("c").tolist() == [[1, 2]]
        assert reader.array("d").tolist() == [1.0, 1.0, 1.0]
        assert reader.array("e").tolist() == [0x38] * 4
        assert float(reader.array("s")) == 2.5


def test_the_library_reads_what_is_written_here(tmp_path: Path) -> None:
    tensorizer = pytest.importorskip("tensorizer", reason="tensorizer is not installed")
    torch = pytest.importorskip("torch")
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    serializer = tensorizer.TensorSerializer(str(tmp_path / "model.tensors"))
    serializer.write_state_dict(state)
    serializer.close()
    with TensorReader(tmp_path, read_tensors(tmp_path)[0]) as reader:
        for name, tensor in state.items():
            assert reader.read(name).tobytes() == tensor.view(torch.uint8).numpy().tobytes()


def test_versioned_entries_have_long_shapes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m.tensors", {"a": floats(2, 3), "b": floats(4)}, version=5, flags=2)
    tensors, _ = read_tensors(tmp_path)
    assert [each.shape for each in tensors] == [(2, 3), (4,)]
    with TensorReader(tmp_path, tensors) as reader:
        assert np.array_equal(reader.array("b"), floats(4))


def test_rotary_buffers_of_a_module_are_left_out(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m.tensors", {"model.rotary_emb.original_inv_freq": floats(4)}, kind=1)
    assert read_tensors(tmp_path)[0] == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"magic": b"TENSR"}, "is no file of tensorizer"),
        ({"version": 3, "size": 4}, "needs 24 bytes"),
        ({"version": 4, "flags": 9}, "is of version 4, flags 0x9"),
        ({"version": 6}, "is of version 6"),
        ({"version": 4, "flags": 8}, "is of version 4, flags 0x8"),
        ({"length": 1 << 60}, "claims an index of"),
        ({"length": 0}, "claims an index of 0 bytes"),
        ({"num": 1 << 40}, "the index is broken|has dtype|two tensors"),
        ({"length": 9}, "the index is broken"),
        ({"size": 4}, "needs 24 bytes, the index says 4"),
        ({"dtype": b"<c8"}, "has dtype '<c8'"),
        ({"cut": 4}, "lies after the end of the file"),
        ({"cut": 120}, "ends in its header|claims an index"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    write_tensors(tmp_path / "m.tensors", {"a": floats(2, 3)}, **changes)
    with pytest.raises(CheckpointError, match=problem):
        read_tensors(tmp_path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m.tensors", {"a": floats(2, 3), "b": floats(1)})
    whole = (tmp_path / "m.tensors").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "m.tensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_tensors(tmp_path)


def test_names_and_files_that_no_model_has(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file \*\.tensors"):
        read_tensors(tmp_path)
    write_tensors(tmp_path / "m.tensors", {"\x1e[1,2]": floats(2)})
    with pytest.raises(CheckpointError, match="is a path, and not the name"):
        read_tensors(tmp_path)
    write_tensors(tmp_path / "n.tensors", {"a": floats(2)})
    with pytest.raises(CheckpointError, match="2 files"):
        read_tensors(tmp_path)


def test_only_where_the_spec_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(tmp_path / "m.tensors", {"a": floats(2, 3)})
    facts = read_model_facts(tmp_path, None, "tensorizer")
    assert (facts.format, [each.name for each in facts.tensors]) == ("tensorizer", ["a"])
    with open_tensors(facts) as reader:
        assert np.array_equal(reader.array("a"), floats(2, 3))
    with pytest.raises(CheckpointError, match="there is no safetensors file") as caught:
        read_model_facts(tmp_path)
    assert caught.value.hint == "write loading.load_format: tensorizer"
