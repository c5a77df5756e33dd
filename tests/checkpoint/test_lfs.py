"""The plan reports a Git LFS pointer in place of a file, with a hint."""

from pathlib import Path

import pytest

from appliance.checkpoint import CheckpointError, read_model_facts
from appliance.checkpoint.lfs import refuse_pointer
from appliance.text.errors import TokenizerError
from appliance.text.loading import load_tokenizer

from .files import write_folder
from .test_folder import CONFIG

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 988097824\n"
)
WORDS = r"is a Git LFS pointer of a file of 942 MiB, not the file itself"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "generation_config.json", "tokenizer_config.json"]
)
def test_in_a_folder(tmp_path: Path, name: str) -> None:
    root = write_folder(tmp_path, CONFIG)
    (root / name).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"^{name}: {WORDS}") as caught:
        read_model_facts(root)
    assert "git lfs pull" in str(caught.value.hint)


def test_an_index_and_its_shards(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    (root / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    (root / "one.safetensors").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"^one.safetensors: {WORDS}"):
        read_model_facts(root)
    (root / "model.safetensors.index.json").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"^model.safetensors.index.json: {WORDS}"):
        read_model_facts(root)


def test_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"^m.gguf: {WORDS}"):
        read_model_facts(tmp_path / "m.gguf")


def test_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(TokenizerError, match=WORDS):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("head", [b"", b"version 1\nsize 3\n", POINTER.replace(b"spec/v1", b"spec/v9"), POINTER[1:]])
def test_other_files_are_none(head: bytes) -> None:
    refuse_pointer("x", head)


def test_a_pointer_may_have_more_lines() -> None:
    lines = POINTER.split(b"\n", 1)
    with pytest.raises(CheckpointError, match=WORDS):
        refuse_pointer("x", lines[0] + b"\next-0-foo sha256:00\n" + lines[1])
