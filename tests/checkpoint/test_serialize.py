"""What `serialize` writes: equal tensors for us and for the library, all of a folder or nothing of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint import CheckpointError
from appliance.checkpoint import tensorizer_writer as writer
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.reader import TensorReader, TensorSource
from appliance.checkpoint.serialize import NAME, Stored, serialize
from appliance.checkpoint.sources.options import Silent
from appliance.checkpoint.tensorizer import read_tensors
from tests.checkpoint.encrypted_files import KEY, PASSWORD, facts_of, key_file, opened

from .test_folder import CONFIG

pytest.importorskip("nacl", reason="pynacl is not installed")

STATE = {
    "wide.weight": torch.arange(1_100_000, dtype=torch.float32).reshape(1100, 1000),  # three pieces
    "b": torch.linspace(-1, 1, 15).reshape(3, 5).to(torch.bfloat16),
    "e4": torch.linspace(-1, 1, 6).to(torch.float8_e4m3fn),
    "e5": torch.linspace(-1, 1, 6).to(torch.float8_e5m2),
    "none": torch.zeros(0, 4),
    "one": torch.tensor(2.5),
    "yes": torch.tensor([True, False]),
    **{
        str(each): torch.arange(5).to(each)
        for each in (torch.float64, torch.float16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
    },
}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "1_Pooling/config.json").write_text("{}")
    (folder / "notes.txt").write_text("no part of the model")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(STATE, "some.safetensors")})
    )
    save_file(STATE, folder / "some.safetensors")
    return folder


@pytest.fixture(params=["plain", "key", "password"])
def key(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointKey | None:
    monkeypatch.setattr("appliance.checkpoint.tensorizer_key.MEMORY_BYTES", 1 << 20)
    if request.param == "plain":
        return None
    is_key = request.param == "key"
    return key_file(tmp_path, KEY if is_key else PASSWORD.encode(), "key" if is_key else "password")


def test_the_tensors_are_those_of_the_checkpoint(model: Path, tmp_path: Path, key: CheckpointKey | None) -> None:
    made = tmp_path / "deep/made"
    serialize(Stored(model), made, key, Silent())
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()) == [
        "1_Pooling/config.json", "config.json", NAME, "tokenizer.json",
    ]  # fmt: skip
    facts = facts_of(made)
    assert facts.is_encrypted == (key is not None)
    source: TensorSource = TensorReader(made, facts.tensors) if key is None else opened(facts, key)
    assert {each.name: source.read(each.name).tobytes() for each in facts.tensors} == {
        name: bytes_of(tensor) for name, tensor in STATE.items()
    }
    written = (made / NAME).read_bytes()
    assert (bytes_of(STATE["wide.weight"])[:64] in written) == (key is None)


def test_the_library_reads_it(model: Path, tmp_path: Path, key: CheckpointKey | None) -> None:
    tensorizer: Any = pytest.importorskip("tensorizer", reason="tensorizer is not installed")
    serialize(Stored(model), tmp_path / "made", key, Silent())
    params, path = tensorizer.DecryptionParams, str(tmp_path / "made" / NAME)
    how = {"key": lambda: params.from_key(KEY), "password": lambda: params.from_string(PASSWORD)}
    with_what = None if key is None else how[key.holds]()
    found = tensorizer.TensorDeserializer(path, device="cpu", encryption=with_what, verify_hash=True)
    assert set(found) == set(STATE)
    for name, tensor in STATE.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(found[name].contiguous()) == bytes_of(tensor)


def test_two_files_of_one_key_share_no_nonce(model: Path, tmp_path: Path) -> None:
    key = key_file(tmp_path)
    for name in ("one", "two"):
        serialize(Stored(model), tmp_path / name, key, Silent())
    first, second = (read_tensors(tmp_path / name)[0] for name in ("one", "two"))
    files = [(tmp_path / name / NAME).read_bytes() for name in ("one", "two")]
    for here, there in zip(first, second, strict=True):
        if here.size_bytes > 4:
            cut = slice(here.offset_bytes, here.offset_bytes + here.size_bytes)
            assert here.offset_bytes == there.offset_bytes
            assert files[0][cut] != files[1][cut]


def test_it_reads_and_writes_by_pieces(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[str, int, int]] = []
    release = TensorReader.release

    def spy(reader: TensorReader, name: str, start: int, stop: int) -> None:
        released.append((name, start, stop))
        release(reader, name, start, stop)

    monkeypatch.setattr(TensorReader, "release", spy)
    serialize(Stored(model), tmp_path / "made", key_file(tmp_path), Silent())
    assert max(stop - start for _, start, stop in released) == writer.PIECE_BYTES
    assert sum(stop - start for _, start, stop in released) == sum(len(bytes_of(each)) for each in STATE.values())


def test_a_file_of_tensorizer_gets_another_key_or_none(model: Path, tmp_path: Path) -> None:
    old, new = key_file(tmp_path), key_file(tmp_path, b"another key of 32 bytes, as such", "key", "new")
    serialize(Stored(model), tmp_path / "old", old, Silent())
    serialize(Stored(tmp_path / "old", is_serialized=True, key=old), tmp_path / "new", new, Silent())
    assert opened(facts_of(tmp_path / "new"), new).read("b").tobytes() == bytes_of(STATE["b"])
    with pytest.raises(CheckpointError, match="cannot be opened"):
        opened(facts_of(tmp_path / "new"), old).read("b")
    serialize(Stored(tmp_path / "new", is_serialized=True, key=new), tmp_path / "open", None, Silent())
    serialize(Stored(model), tmp_path / "plain", None, Silent())
    assert (tmp_path / "open" / NAME).read_bytes() == (tmp_path / "plain" / NAME).read_bytes()
    with pytest.raises(CheckpointError, match="is encrypted, and no key is given"):
        serialize(Stored(tmp_path / "new", is_serialized=True), tmp_path / "none", None, Silent())
    with pytest.raises(CheckpointError, match="a key is given, and the file is not encrypted"):
        serialize(Stored(tmp_path / "plain", is_serialized=True, key=new), tmp_path / "none", None, Silent())
    assert not (tmp_path / "none").exists()


def test_what_is_there_already_stays(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    serialize(Stored(model), made, None, Silent())
    before = (made / NAME).read_bytes()
    with pytest.raises(CheckpointError, match="is there already, and not empty"):
        serialize(Stored(model), made, key_file(tmp_path), Silent())
    assert (made / NAME).read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is there already"):
        serialize(Stored(model), tmp_path / "file", None, Silent())


def test_a_failure_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("appliance.checkpoint.serialize.write_tensors", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left") as caught:
        serialize(Stored(model), tmp_path / "made", None, Silent())
    assert "--output" in str(caught.value.hint)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]


def test_what_is_no_such_checkpoint(model: Path, tmp_path: Path) -> None:
    (model / "2_Dense").mkdir()
    (model / "2_Dense/model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors has weights too"):
        serialize(Stored(model), tmp_path / "made", None, Silent())
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="is no folder with config"):
        serialize(Stored(tmp_path / "a.gguf"), tmp_path / "made", None, Silent())


def test_files_of_pytorch_are_written_too(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    torch.save({"a": torch.arange(6.0)}, model / "pytorch_model.bin")
    serialize(Stored(model), tmp_path / "made", None, Silent())
    tensors, _ = read_tensors(tmp_path / "made")
    with TensorReader(tmp_path / "made", tensors) as reader:
        assert np.array_equal(reader.array("a"), np.arange(6, dtype=np.float32))
