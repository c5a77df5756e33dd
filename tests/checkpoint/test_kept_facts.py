"""Cached facts are used only while the file is unchanged."""

import os
from pathlib import Path

import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.gguf_facts import read_gguf_facts
from appliance.checkpoint.kept_facts import kept_facts

from .files import LLAMA, write_gguf


class Reader:
    """Counts how often a file is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, path: Path) -> ModelFacts:
        self.reads += 1
        return read_gguf_facts(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", metadata=LLAMA)


def test_the_same_file_is_read_once(file: Path, tmp_path: Path) -> None:
    reader = Reader()
    first = kept_facts(file, tmp_path / "cache", reader)
    assert kept_facts(file, tmp_path / "cache", reader) == first == read_gguf_facts(file)
    assert reader.reads == 1


def test_a_changed_file_is_read_again(file: Path, tmp_path: Path) -> None:
    reader = Reader()
    kept_facts(file, tmp_path / "cache", reader)
    before = file.stat()
    write_gguf(file, metadata=LLAMA | {"general.sampling.temp": 0.5})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert kept_facts(file, tmp_path / "cache", reader).generation_config == {"temperature": 0.5}
    assert reader.reads == 2


def test_what_is_kept_and_cannot_be_read_is_made_anew(file: Path, tmp_path: Path) -> None:
    reader = Reader()
    kept_facts(file, tmp_path / "cache", reader)
    (kept,) = (tmp_path / "cache").rglob("*.json")
    kept.write_bytes(b"{}")
    assert kept_facts(file, tmp_path / "cache", reader) == read_gguf_facts(file)
    assert reader.reads == 2


def test_a_cache_that_cannot_be_written_is_done_without(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert kept_facts(file, tmp_path / "cache", Reader()) == read_gguf_facts(file)
