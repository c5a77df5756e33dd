"""The identity of cached weights changes whenever the weights may have changed."""

import os
from pathlib import Path

import msgspec
import pytest

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.identity import checkpoint_identity
from appliance.checkpoint.read import read_model_facts

from .files import LLAMA, write_gguf

TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    write_gguf(tmp_path / "m.gguf", metadata=LLAMA | TOKENS)
    return read_model_facts(tmp_path / "m.gguf")


def test_a_digest_that_was_checked_decides_alone(facts: ModelFacts) -> None:
    elsewhere = msgspec.structs.replace(facts, root="/somewhere/else.gguf")
    assert checkpoint_identity(facts, "a" * 64) == checkpoint_identity(elsewhere, "a" * 64)
    assert checkpoint_identity(facts, "a" * 64) != checkpoint_identity(facts, "b" * 64)


def test_a_file_that_was_written_again_is_another(facts: ModelFacts) -> None:
    before = checkpoint_identity(facts, None)
    path = Path(facts.root)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    touched = checkpoint_identity(facts, None)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    copy.replace(path)
    assert len({before, touched, checkpoint_identity(facts, None)}) == 3


def test_other_headers_are_another_checkpoint(facts: ModelFacts) -> None:
    other = msgspec.structs.replace(facts, header_sha256="0" * 64)
    assert checkpoint_identity(facts, None) != checkpoint_identity(other, None)


def test_a_file_that_is_gone_is_an_error(facts: ModelFacts) -> None:
    Path(facts.root).unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint_identity(facts, None)
