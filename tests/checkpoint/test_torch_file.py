"""Files of PyTorch: the tensors are torch's own, to the bit, and nothing that a file says is run."""

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.checkpoint.torch_file import read_torch_file

from .test_folder import CONFIG

TENSORS: dict[str, torch.Tensor] = {
    "a.weight": torch.randn(5, 7, generator=torch.Generator().manual_seed(1)),
    "b.weight": torch.arange(6).reshape(2, 3).bfloat16(),
    "c": torch.arange(4, dtype=torch.int64),
    "scalar": torch.tensor(2.5, dtype=torch.float16),
}


def folder(root: Path) -> Path:
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def test_tensors_are_those_of_torch(tmp_path: Path) -> None:
    whole = torch.arange(20, dtype=torch.float32).reshape(4, 5)
    tensors = TENSORS | {"slice": whole[1:3], "parameter": torch.nn.Parameter(torch.ones(3))}
    torch.save(tensors, folder(tmp_path) / "pytorch_model.bin")
    (tmp_path / "training_args.bin").write_bytes(b"no weights")
    facts = read_model_facts(tmp_path)
    assert (facts.format, {tensor.name for tensor in facts.tensors}) == ("pt", tensors.keys())
    with open_tensors(facts) as reader:
        for name, tensor in tensors.items():
            expected = tensor.detach().contiguous()
            found = reader.array(name)
            assert found.shape == tuple(expected.shape)
            np.testing.assert_array_equal(found.reshape(-1).view(np.uint8), expected.reshape(-1).view(torch.uint8))


def test_shards_that_an_index_names(tmp_path: Path) -> None:
    names = list(TENSORS)
    files = {name: f"pytorch_model-0000{1 + at % 2}-of-00002.bin" for at, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: TENSORS[name] for name in names if files[name] == file}, folder(tmp_path) / file)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert {tensor.name: tensor.file for tensor in read_model_facts(tmp_path).tensors} == files
    index.write_text(json.dumps({"weight_map": files | {"d": files["c"]}}))
    with pytest.raises(CheckpointError, match="tensor 'd' should be in"):
        read_model_facts(tmp_path)
    (tmp_path / files["c"]).unlink()
    with pytest.raises(CheckpointError, match="is not an archive of PyTorch"):
        read_model_facts(tmp_path)


def test_safetensors_come_first(tmp_path: Path) -> None:
    torch.save(TENSORS, folder(tmp_path) / "pytorch_model.bin")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="claims a header"):
        read_model_facts(tmp_path)


class Harmful:
    """Its unpickling would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def archive(path: Path, described: bytes, **storages: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", described)
        for key, data in storages.items():
            file.writestr(f"archive/data/{key}", data)


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    archive(tmp_path / "w.bin", pickle.dumps({"a": Harmful(mark)}))
    with pytest.raises(CheckpointError, match="which describes no tensor and is not run"):
        read_torch_file(tmp_path, "w.bin")
    assert not mark.exists()
    for text in (b"cos\nsystem\n(S'true'\ntR.", b"cbuiltins\neval\n(S'1'\ntR.", b"ctorch\nload\n(S'x'\ntR."):
        archive(tmp_path / "w.bin", text)
        with pytest.raises(CheckpointError, match="is not run"):
            read_torch_file(tmp_path, "w.bin")


def saved(value: Any) -> Any:
    return lambda path: torch.save(value, path)


def cut(path: Path) -> None:
    torch.save(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-200])


def compressed(path: Path) -> None:
    torch.save(TENSORS, path)
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)


def in_no_text(path: Path) -> None:
    """Says that a name is in UTF-8, and it is not."""
    archive(path, b"")
    data = bytearray(path.read_bytes())
    name = data.rindex(b"archive/data.pkl")  # in the directory, where the flags lie 38 bytes before it
    data[name - 37], data[name] = 8, 255
    path.write_bytes(data)


BROKEN: dict[str, tuple[Any, str]] = {
    "cut off": (cut, "is not an archive of PyTorch"),
    "compressed": (compressed, "is compressed, and cannot be mapped"),
    "columns first": (saved({"a": torch.ones(3, 4).T}), "tensor 'a' does not lie row by row"),
    "a name in no text": (in_no_text, "is not an archive of PyTorch"),
    "a number": (saved({"a": 1}), "'a' is not a tensor"),
    "a list": (saved([torch.ones(3)]), "does not hold a dictionary of tensors"),
    "an old file": (lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False), "is not an archive"),
    "a pickle cut off": (lambda path: archive(path, b"\x80\x02}q"), "is not read"),
    "no pickle": (lambda path: zipfile.ZipFile(path, "w").close(), "has not one data.pkl"),
    "types of e4m3": (saved({"a": torch.ones(3).to(torch.float8_e4m3fn)}), "describes no tensor and is not run"),
}


class Sized:
    """A tensor that pickles with any sizes, over a storage of four numbers."""

    def __init__(self, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> None:
        self.sizes = shape, strides

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, (STORAGE, 0, *self.sizes, False, OrderedDict())


STORAGE = object()


class Pickler(pickle.Pickler):
    def persistent_id(self, given: Any) -> Any:
        return ("storage", torch.FloatStorage, "0", "cpu", 4) if given is STORAGE else None


@pytest.mark.parametrize(
    ("shape", "strides"), [((2,), (1, 1)), ((2, 2), (1,)), ((2, 2), ()), ((-2,), (1,)), ((2.0,), (1,)), ((2,), ("1",))]
)
def test_sizes_that_no_tensor_has(shape: tuple[Any, ...], strides: tuple[Any, ...], tmp_path: Path) -> None:
    described = io.BytesIO()
    Pickler(described, protocol=2).dump({"a": Sized(shape, strides)})
    archive(tmp_path / "w.bin", described.getvalue(), **{"0": bytes(16)})
    with pytest.raises(CheckpointError, match="tensor 'a' has impossible sizes"):
        read_torch_file(tmp_path, "w.bin")


def test_a_byte_order_that_is_no_word_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.bin", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({}))
        file.writestr("archive/byteorder", bytes(1 << 20))
    with pytest.raises(CheckpointError, match="another byte order"):
        read_torch_file(tmp_path, "w.bin")


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_are_refused(what: str, tmp_path: Path) -> None:
    write, expected = BROKEN[what]
    write(tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=expected):
        read_torch_file(tmp_path, "w.pt")


def test_a_storage_that_is_too_short(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(64)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as file:
        described = next(file.read(name) for name in file.namelist() if name.endswith("data.pkl"))
    archive(tmp_path / "w.pt", described, **{"0": bytes(100)})
    with pytest.raises(CheckpointError, match="tensor 'a' needs 256 bytes of storage '0'"):
        read_torch_file(tmp_path, "w.pt")
