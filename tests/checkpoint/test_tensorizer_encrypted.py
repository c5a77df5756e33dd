"""Encrypted files of tensorizer: those that it wrote open with their key or password, and nothing else does."""

import json
import struct
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from appliance.base.extras import MissingExtraError
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.loader_choice import CheckpointKey, LoaderChoice
from appliance.checkpoint.opening import open_source
from appliance.checkpoint.parts import bytes_of
from appliance.checkpoint.reader import TensorReader
from appliance.checkpoint.tensorizer_key import check_key
from appliance.checkpoint.tensorizer_seal import Seal, read_seal
from tests.checkpoint.encrypted_files import (
    KEY,
    PASSWORD,
    facts_of,
    key_file,
    opened,
    write_keyed,
    write_with_password,
)
from tests.checkpoint.tensorizer_files import floats, write_tensors

from .test_folder import CONFIG

pytest.importorskip("nacl", reason="pynacl is not installed")


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_keyed(tmp_path / "m.tensors")
    return tmp_path


@pytest.fixture
def with_password(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_with_password(tmp_path / "m.tensors")
    return tmp_path


def values(facts: ModelFacts, key: CheckpointKey) -> dict[str, bytes]:
    source = opened(facts, key)
    return {tensor.name: source.read(tensor.name).tobytes() for tensor in facts.tensors}


EXPECTED = {"a.weight": floats(6).tobytes(), "b": b"\x80\x3f" * 4, "long": floats(700).tobytes()}


def test_the_librarys_file_with_a_key(keyed: Path) -> None:
    facts = facts_of(keyed)
    assert facts.is_encrypted
    assert [(each.name, each.storage, each.shape) for each in facts.tensors] == [
        ("a.weight", "f32", (2, 3)), ("b", "bf16", (4,)), ("long", "f32", (700,)),
    ]  # fmt: skip
    assert values(facts, key_file(keyed)) == EXPECTED


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_librarys_file_with_a_password(with_password: Path, end: str) -> None:
    facts, key = facts_of(with_password), key_file(with_password, (PASSWORD + end).encode(), "password")
    assert values(facts, key) == EXPECTED


def test_plans_need_no_key_and_nothing_maps_what_is_encrypted(keyed: Path) -> None:
    facts = facts_of(keyed)
    with TensorReader(keyed, facts.tensors) as reader, pytest.raises(CheckpointError, match="'b' is encrypted"):
        reader.read("b")
    with pytest.raises(CheckpointError, match="'b' tells how a matrix is quantized, and is encrypted"):
        bytes_of(keyed, facts.tensors[1])
    with pytest.raises(CheckpointError, match="is encrypted, and no key is given") as caught:
        open_source(facts)
    assert "encryption_keyfile" in str(caught.value.hint)


def test_a_plain_file_in_place_of_an_encrypted_one_is_refused(keyed: Path) -> None:
    write_tensors(keyed / "m.tensors", {"a": floats(2)})
    facts = msgspec.structs.replace(facts_of(keyed), loader=LoaderChoice(key=key_file(keyed)))
    with pytest.raises(CheckpointError, match="a key is given, and the file is not encrypted"):
        open_source(facts)


def test_a_plain_tensor_among_encrypted_ones_is_refused(keyed: Path) -> None:
    facts = facts_of(keyed)
    plain = msgspec.structs.replace(facts.tensors[0], sealed_at=None)
    source = opened(msgspec.structs.replace(facts, tensors=(plain, *facts.tensors[1:])), key_file(keyed))
    with pytest.raises(CheckpointError, match=r"'a\.weight' is not encrypted, and others of the checkpoint are"):
        source.read("a.weight")


def test_another_key_opens_nothing_and_is_not_told(keyed: Path) -> None:
    source = opened(facts_of(keyed), key_file(keyed, b"another key, and quite a wrong 1"))
    with pytest.raises(CheckpointError, match="'b' cannot be opened: the key is another one, or its bytes") as caught:
        source.read("b")
    assert "wrong 1" not in f"{caught.value} {caught.value.hint}"


def test_another_password_opens_nothing_and_is_not_told(with_password: Path) -> None:
    source = opened(facts_of(with_password), key_file(with_password, b"open barley", "password"))
    with pytest.raises(CheckpointError, match="'b' cannot be opened") as caught:
        source.read("b")
    assert "barley" not in f"{caught.value} {caught.value.hint}"


def test_a_password_does_not_open_what_a_key_closed(keyed: Path) -> None:
    source = opened(facts_of(keyed), key_file(keyed, b"any", "password"))
    with pytest.raises(CheckpointError, match="with a key, and not with that of a password"):
        source.read("b")


@pytest.mark.parametrize("place", [0, 1023, 1024, 2047, 2048, 2799])
def test_a_changed_byte_of_any_piece_is_found(keyed: Path, place: int) -> None:
    tensor = facts_of(keyed).tensors[2]
    change(keyed / "m.tensors", tensor.offset_bytes + place)
    with pytest.raises(CheckpointError, match="'long' cannot be opened"):
        opened(facts_of(keyed), key_file(keyed)).read("long")
    assert opened(facts_of(keyed), key_file(keyed)).read("b").tobytes() == EXPECTED["b"]


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_are_refused_or_change_no_value(keyed: Path, seed: int) -> None:
    whole, key, random = (keyed / "m.tensors").read_bytes(), key_file(keyed), np.random.default_rng(seed)
    places = [*range(60, 200), *range((256 << 10) + 69, len(whole))]  # between them is what the index has not filled
    for place in random.choice(places, 150, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(random.integers(8))
        (keyed / "m.tensors").write_bytes(changed)
        found: dict[str, bytes] | None = None
        with suppress(CheckpointError):
            found = values(facts_of(keyed), key)
        assert found in (None, EXPECTED)


def test_every_cut_is_refused(keyed: Path) -> None:
    whole, key = (keyed / "m.tensors").read_bytes(), key_file(keyed)
    end = len(whole) - 8  # of the tensors; what follows is not read
    for length in [*range(0, 260, 7), *range((256 << 10) + 69, end, 13), end - 1]:
        (keyed / "m.tensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            values(facts_of(keyed), key)


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ((1 << 60, 8192, 2), "asks for .* passes over 8192 bytes"),
        ((1, 1 << 60, 2), "asks for 1 passes over"),
        ((64, 1 << 30, 2), "asks for 64 passes over"),
        ((1, 8192, 1), "in a way that is not in this version"),
        ((0, 8192, 2), "no key can be made of the password with 0 passes"),
        ((1, 1, 2), "no key can be made of the password with 1 passes over 1 bytes"),
    ],
)
def test_what_a_file_asks_of_argon2_is_bounded(
    with_password: Path, numbers: tuple[int, int, int], problem: str
) -> None:
    path = with_password / "m.tensors"
    written = struct.pack("<QQi", 1, 8192, 2)
    assert path.read_bytes().count(written) == 3
    path.write_bytes(path.read_bytes().replace(written, struct.pack("<QQi", *numbers)))
    source, began = opened(facts_of(with_password), key_file(with_password, b"any", "password")), time.monotonic()
    with pytest.raises(CheckpointError, match=problem):
        source.read("b")
    assert time.monotonic() - began < 5


def test_each_tensor_with_a_salt_of_its_own_is_refused(with_password: Path) -> None:
    path = with_password / "m.tensors"
    raw, salt = path.read_bytes(), struct.pack("<QQi", 1, 8192, 2)
    change(path, raw.rindex(salt) + len(salt) + 2)
    source = opened(facts_of(with_password), key_file(with_password, PASSWORD.encode(), "password"))
    source.read("a.weight")
    with pytest.raises(CheckpointError, match="in several ways"):
        source.read("long")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (b"", "does not have the 32 bytes of a key"),
        (bytes(33), "does not have the 32 bytes of a key"),
        (KEY.hex().encode(), "does not have the 32 bytes of a key"),
    ],
)
def test_a_key_has_32_bytes(tmp_path: Path, key: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        check_key(key_file(tmp_path, key))
    assert caught.value.where == "loading.model_loader_extra_config.encryption_keyfile"


def test_a_file_that_is_not_there_and_an_empty_password(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        check_key(CheckpointKey(path=str(tmp_path / "none"), holds="key"))
    with pytest.raises(CheckpointError, match="has no password of 1 to 4096 bytes"):
        check_key(key_file(tmp_path, b"\n", "password"))
    with pytest.raises(CheckpointError, match="has no password of 1 to 4096 bytes"):
        check_key(key_file(tmp_path, bytes(1 << 20), "password"))


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name="nacl")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match="an encrypted file of tensorizer needs nacl") as caught:
        check_key(key_file(tmp_path))
    assert caught.value.hint == "pip install 'appliance[tensorizer]'"


def test_a_tensor_that_was_read_is_forgotten(keyed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, made = opened(facts_of(keyed), key_file(keyed)), []

    def spy(folder: Path, tensor: TensorFacts) -> Seal:
        made.append(tensor.name)
        return read_seal(folder, tensor)

    monkeypatch.setattr("appliance.checkpoint.decrypted.read_seal", spy)
    source.read("long")
    source.read("long")
    assert made == ["long"]
    source.release("long", 0, 1024)
    source.read("long")
    assert made == ["long"]
    source.release("long", 1024, 2800)
    source.read("long")
    assert made == ["long", "long"]


def change(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
