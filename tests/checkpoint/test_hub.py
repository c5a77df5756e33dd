import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from appliance.checkpoint import CheckpointError, FetchOptions, resolve_source

from .conftest import Recorder
from .fake_hub import COMMIT, FakeHub

Start = Callable[..., FakeHub]
MODEL = random.Random(0).randbytes(200_000)
SHA = hashlib.sha256(MODEL).hexdigest()
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickle",
    "README.md": b"words",
    "original/model.safetensors": b"twice",
}


def options(tmp_path: Path, **changes: object) -> FetchOptions:
    return FetchOptions(cache_dir=tmp_path / "cache", base_dir=tmp_path, timeout_s=2.0, **changes)  # type: ignore[arg-type]


def test_one_file_with_progress(tmp_path: Path, hub: Start, recorder: Recorder) -> None:
    hub(o__m={"q.gguf": MODEL, "other.gguf": b"x"})
    path = resolve_source("hf://o/m/q.gguf", options=options(tmp_path), progress=recorder)
    assert path.read_bytes() == MODEL
    assert path.name == "q.gguf"
    assert ["fetching q.gguf", len(MODEL), "bytes", len(MODEL)] in recorder.bars


def test_a_page_of_the_hub_is_the_model_and_that_is_said(tmp_path: Path, hub: Start, recorder: Recorder) -> None:
    hub(o__m=FOLDER)
    path = resolve_source("https://huggingface.co/o/m/tree/main", options=options(tmp_path), progress=recorder)
    assert path == resolve_source("hf://o/m", options=options(tmp_path))
    assert recorder.notes == ["https://huggingface.co/o/m/tree/main is a page; it was read as hf://o/m"]


def test_a_checked_file_asks_nobody_the_second_time(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m={"q.gguf": MODEL})
    first = resolve_source("hf://o/m/q.gguf", (), SHA, options(tmp_path))
    asked = len(server.requests)
    assert resolve_source("hf://o/m/q.gguf", (), SHA, options(tmp_path)) == first
    assert len(server.requests) == asked
    assert first.read_bytes() == MODEL


def test_wrong_bytes_are_never_returned(tmp_path: Path, hub: Start) -> None:
    hub(o__m={"q.gguf": b"something else"})
    with pytest.raises(CheckpointError, match=f"not {SHA}"):
        resolve_source("hf://o/m/q.gguf", (), SHA, options(tmp_path))


def test_a_folder_leaves_out_what_is_not_needed(tmp_path: Path, hub: Start) -> None:
    hub(o__m=FOLDER)
    path = resolve_source("o/m", options=options(tmp_path))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_random_weights_need_no_weights(tmp_path: Path, hub: Start) -> None:
    hub(o__m=FOLDER, o__n={"model.safetensors": b"weights"})
    path = resolve_source("o/m", options=options(tmp_path, form="dummy"))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "tokenizer.json"]
    with pytest.raises(CheckpointError, match=r"has no config\.json, which alone tells"):
        resolve_source("o/n", options=options(tmp_path, form="dummy"))


def test_weights_that_are_there_twice_are_fetched_once(tmp_path: Path, hub: Start) -> None:
    own = {"params.json": b"{}", "consolidated.safetensors": b"weights", "tekken.json": b"{}"}
    hub(o__m=FOLDER | own, o__n=own)
    path = resolve_source("hf://o/n", options=options(tmp_path))
    assert sorted(file.name for file in path.iterdir()) == sorted(own)
    path = resolve_source("hf://o/m", options=options(tmp_path))
    assert {file.name for file in path.glob("*.safetensors")} == {"model.safetensors"}
    path = resolve_source("hf://o/m", options=options(tmp_path, form="mistral"))
    assert {file.name for file in path.glob("*.safetensors")} == {"model.safetensors", "consolidated.safetensors"}


def test_files_of_pytorch_are_fetched_where_there_are_no_other_weights(tmp_path: Path, hub: Start) -> None:
    hub(
        o__m={"config.json": b"{}", "pytorch_model.bin": b"pickle", "training_args.bin": b"more", "README.md": b"words"}
    )
    path = resolve_source("o/m", options=options(tmp_path))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_heads_of_medusa_are_fetched_as_their_authors_saved_them(tmp_path: Path, hub: Start) -> None:
    hub(o__m={"config.json": b"{}", "medusa_lm_head.pt": b"pickle", "README.md": b"words"})
    path = resolve_source("o/m", options=options(tmp_path))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "medusa_lm_head.pt"]


def test_code_is_fetched_only_where_it_is_asked_for_at_its_own_revision(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m=FOLDER | {"modeling_x.py": b"code", "tools/more.py": b"more"})
    folder = resolve_source("hf://o/m@main", options=options(tmp_path))
    assert not (folder / "modeling_x.py").exists()
    server.requests.clear()
    found = resolve_source("hf://o/m@main", options=options(tmp_path, revision="v1", only="code"))
    assert (found / "modeling_x.py").read_bytes() == b"code"
    assert any("api/models/o/m/revision/v1" in each for each in server.requests)
    fetched = {each.rpartition("/")[2] for each in server.requests if each.startswith("GET") and "/resolve/" in each}
    assert fetched <= {"modeling_x.py", "config.json"}
    offline = options(tmp_path, revision="v1", only="code", offline=True)
    assert resolve_source("hf://o/m@main", options=offline) == found


def test_ignore_patterns(tmp_path: Path, hub: Start) -> None:
    hub(o__m=FOLDER)
    path = resolve_source("o/m", options=options(tmp_path, ignore_patterns=("tokenizer*",)))
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("source", ["hf://o/m@v1/q.gguf", "hf://o/m/q.gguf"])
def test_the_revision_is_resolved_to_a_commit(tmp_path: Path, hub: Start, source: str) -> None:
    server = hub(o__m={"q.gguf": MODEL})
    resolve_source(source, options=options(tmp_path, revision="v1"))
    assert "GET api/models/o/m/revision/v1" in server.requests
    assert f"GET o/m/resolve/{COMMIT}/q.gguf" in server.requests


def test_a_token_is_sent_and_its_lack_is_told(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m={"q.gguf": MODEL})
    server.token = "secret"
    with pytest.raises(CheckpointError, match="gated") as raised:
        resolve_source("hf://o/m/q.gguf", options=options(tmp_path, token="wrong"))
    assert "hf_token" in str(raised.value.hint)
    assert resolve_source("hf://o/m/q.gguf", options=options(tmp_path, token="secret")).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("source", "revision", "words"),
    [
        ("hf://o/none/q.gguf", None, "is not on the hub"),
        ("hf://o/m/nothing.gguf", None, "has no file 'nothing.gguf'"),
        ("hf://o/m/q.gguf", "v9", "has no revision 'v9'"),
        ("hf://o/m", None, "holds 2 GGUF models"),
        ("hf://o/empty", None, "neither safetensors nor GGUF"),
        ("hf://o/m:Q8_0", None, "has no GGUF model of Q8_0"),
        ("hf://o/twice:q4_0", None, "holds 2 GGUF models of q4_0"),
    ],
)
def test_what_the_hub_lacks_is_told(tmp_path: Path, hub: Start, source: str, revision: str | None, words: str) -> None:
    twice = {"a-Q4_0.gguf": MODEL, "b-Q4_0.gguf": MODEL}
    hub(o__m={"q.gguf": MODEL, "p.gguf": MODEL}, o__empty={"README.md": b""}, o__twice=twice)
    with pytest.raises(CheckpointError, match=words):
        resolve_source(source, options=options(tmp_path, revision=revision))


def test_a_split_model_is_fetched_whole(tmp_path: Path, hub: Start) -> None:
    hub(o__m={"m-00001-of-00002.gguf": b"one", "m-00002-of-00002.gguf": b"two", "mmproj.gguf": b""})
    path = resolve_source("o/m", options=options(tmp_path))
    assert path.name == "m-00001-of-00002.gguf"
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == b"two"


QUANTS = [
    *("m-Q4_K_M.gguf", "m-q4_k_s.gguf", "m-Q4_K_XL.gguf", "m-IQ4_XS.gguf", "m.f16.gguf", "m-BF16.gguf"),
    *("mmproj-Q8_0.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"),
]


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q4_K_S", "m-q4_k_s.gguf"),
        ("F16", "m.f16.gguf"),
        ("BF16", "m-BF16.gguf"),
        ("Q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_a_quantization_names_the_file(tmp_path: Path, hub: Start, quant: str, name: str) -> None:
    """The form is that of `ollama run hf.co/o/m:Q4_K_M` and `llama-server -hf o/m:Q4_K_M`; it works offline too."""
    hub(o__m={each: each.encode() for each in QUANTS})
    source = f"hf://o/m:{quant}"
    path = resolve_source(source, options=options(tmp_path))
    assert path.read_bytes() == name.encode()
    assert resolve_source(source, options=options(tmp_path, offline=True)) == path
    if "-of-" in name:
        assert path.with_name("m-Q8_0-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize("part", ["Q4_K", "Q4_XS", "4_K_M"])
def test_a_part_of_a_quantization_names_nothing(tmp_path: Path, hub: Start, part: str) -> None:
    hub(o__m={each: each.encode() for each in QUANTS})
    with pytest.raises(CheckpointError, match=f"has no GGUF model of {part}"):
        resolve_source(f"hf://o/m:{part}", options=options(tmp_path))


def test_an_unreachable_hub_leaves_its_cache(tmp_path: Path, hub: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(o__m={"q.gguf": MODEL}, o__f=FOLDER)
    path = resolve_source("hf://o/m/q.gguf", options=options(tmp_path))
    folder = resolve_source("o/f", options=options(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert resolve_source("hf://o/m/q.gguf", options=options(tmp_path)) == path
    assert resolve_source("o/f", options=options(tmp_path)) == folder
    with pytest.raises(CheckpointError, match="cannot be reached, and the local cache does not hold it"):
        resolve_source("hf://o/x/q.gguf", options=options(tmp_path))


def test_offline_asks_nobody(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m={"q.gguf": MODEL})
    with pytest.raises(CheckpointError, match="offline, and the local cache"):
        resolve_source("hf://o/m/q.gguf", options=options(tmp_path, offline=True))
    assert server.requests == []
    online = resolve_source("hf://o/m/q.gguf", options=options(tmp_path))
    server.requests.clear()
    assert resolve_source("hf://o/m/q.gguf", options=options(tmp_path, offline=True)) == online
    assert server.requests == []


def test_a_broken_download_is_resumed(tmp_path: Path, hub: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    server = hub(o__m={"q.gguf": MODEL})
    server.cut = 100_000
    assert resolve_source("hf://o/m/q.gguf", (), SHA, options(tmp_path)).read_bytes() == MODEL
    assert any(request.endswith("bytes=100000-") for request in server.requests)


def test_the_endpoint_of_the_environment_is_used(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m={"q.gguf": MODEL})
    code = "from appliance.checkpoint import resolve_source; print(resolve_source('hf://o/m/q.gguf'))"
    changes = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "APPLIANCE_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | changes, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).read_bytes() == MODEL
    assert all("o/m" in request for request in server.requests), "nothing but the model is asked for"


def test_a_hub_cache_that_cannot_be_written_is_no_broken_download(tmp_path: Path, hub: Start) -> None:
    hub(o__m=FOLDER)
    (tmp_path / "hf").write_text("a file")
    with pytest.raises(CheckpointError, match=r"the hub's cache .*/hf cannot be used: Not a directory") as raised:
        resolve_source("hf://o/m", options=options(tmp_path))
    assert raised.value.hint is not None
    assert raised.value.hint.endswith("or name another folder with HF_HOME")
