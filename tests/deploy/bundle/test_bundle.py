"""Secrets planted in every place that a bundle is made of are not in it, and its plan is made again elsewhere."""

import gzip
import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from appliance.base.hashing import key_hash
from appliance.cli.app import main
from appliance.deploy.bundle.archive import MAX_MEMBERS, BundleError, read_archive
from appliance.deploy.bundle.masking import OTHER_LINE, Masker
from appliance.deploy.state import DeploymentState
from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_model

PLANTED = "PLANTED"
KEY_HASH = key_hash("PLANTED-short-key")
SPEC = f"""\
# api key of the lab: sk-PLANTEDcomment0123456789
api_version: appliance/v1
kind: Deployment
name: shared
x-note: PLANTED-extension
description: "${{env:DESCRIPTION}}"
model:
  source: ./model
  served_names: [first, "${{env:ALIAS}}"]
  mirrors: ["https://user:PLANTED-url@example.org/m?token=PLANTED-query"]
  sha256: {"a" * 64}
loading: {{hf_token: PLANTED-literal-token}}
decoding: {{override_generation_config: {{temperature: 0.5}}}}
cache: {{block_size: "${{env:BLOCK}}", dtype: "${{env:DTYPE}}"}}
endpoints:
  http: {{port: 8123, root_path: "${{file:root}}"}}
  auth: {{keys: [{{name: a, hash: "{KEY_HASH}"}}]}}
slo: {{ttft_p95: 2s}}
"""
LOG = """\
12:00:00.000 info    server: ready url=http://127.0.0.1:8123 seconds=1.5
12:00:01.000 info    server: request id=r1 prompt="PLANTED \\"quoted\\"" sampling="S(stop=PLANTED)" tokens=3
12:00:02.000 info    server: answer id=r1 text=PLANTED-answer finished=stop
12:00:03.000 warning server: refused authorization="Bearer PLANTED-bearer" api_key=PLANTED-named
12:00:04.000 error   e: failed error="ValueError('PLANTED it')" traceback="T:\\n  File \\"a.py\\", line 3\\nE: PLANTED"
{"time": 1.0, "level": "info", "area": "server", "event": "request", "prompt": "PLANTED json", "id": "r2"}
{"level": "info", "other": "PLANTED"}
a library prints PLANTED
12:00:05.000 info    server: token was PLANTED-literal-token
12:00:06.000 info    server: override was PLANTED-override
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec with secrets everywhere, and the state that a server of it would have left. Its path."""
    folder = tmp_path / "specs"
    (folder / "model").mkdir(parents=True)
    make_random_model(folder / "model")
    (folder / "root").write_text("/PLANTED-file")
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC)
    (folder / "deployment.lock").write_text("version: 1\nname: shared\n")
    values = {"DESCRIPTION": "PLANTED-variable", "ALIAS": "PLANTED-alias", "BLOCK": "32", "DTYPE": "float32"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_API_KEY", "PLANTED-unrelated")
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    state = DeploymentState(tmp_path / "state", "shared")
    state.create()
    planned = prepare(spec, ["model.sha256=null", "model.mirrors=[]"]).plan
    made = state.new_generation(planned, SPEC, {}, ["loading.hf_token=PLANTED-override"])
    made.log_path.write_text(LOG)
    return spec


def bundle_of(spec: Path, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "support.tar.gz"
    assert main(["doctor", str(spec), "--bundle", str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return read_archive(file)


def plain(spec: Path) -> Path:
    """Without mirrors: a checkpoint in a folder has no digest."""
    text = spec.read_text()
    spec.write_text(text[: text.index("  mirrors")] + text[text.index("loading:") :])
    return spec


def test_no_secret_is_in_a_bundle(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = bundle_of(plain(shared), tmp_path)
    wanted = {"bundle.json", "spec.yaml", "hardware.json", "model.json", "plan.json", "server.log", "deployment.lock"}
    wanted |= {"kernels.json"}
    assert wanted | {"history.json"} == set(members)
    for name, text in members.items():
        assert PLANTED not in text, name
        assert KEY_HASH.removeprefix("sha256:") not in text, name
    printed = capsys.readouterr().out
    assert PLANTED not in printed
    assert "masked: description, model.served_names[1], loading.hf_token" in printed


def test_what_a_bundle_still_says(shared: Path, tmp_path: Path) -> None:
    members = bundle_of(plain(shared), tmp_path)
    manifest: dict[str, Any] = json.loads(members["bundle.json"])
    assert manifest["name"] == "shared"
    assert manifest["missing"] == {"boot.json": manifest["missing"]["boot.json"]}
    assert "numpy" in manifest["packages"]
    assert "block_size: 32" in members["spec.yaml"]
    assert "dtype: float32" in members["spec.yaml"]
    assert "ttft_p95: 2s" in members["spec.yaml"]
    lines = members["server.log"].splitlines()
    assert lines[0].endswith("ready url=http://127.0.0.1:8123 seconds=1.5")
    assert lines[1].endswith('request id=r1 prompt="***" sampling="***" tokens=3')
    assert 'error="ValueError(***)"' in lines[4]
    assert 'File \\"a.py\\", line 3' in lines[4]
    assert lines[6:8] == [OTHER_LINE, OTHER_LINE]


def test_the_plan_is_made_again_elsewhere(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_of(plain(shared), tmp_path)
    for file in sorted(shared.parent.rglob("*"), reverse=True):  # another machine has none of it
        file.rmdir() if file.is_dir() else file.unlink()
    for name in ("DESCRIPTION", "ALIAS", "BLOCK", "DTYPE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("APPLIANCE__SCHEDULER__MAX_NUM_SEQS", "3")  # nor its environment
    monkeypatch.setattr("appliance.plan.prepare.probe_machine", lambda: pytest.fail("the bundle brings its machine"))
    capsys.readouterr()
    bundle = str(tmp_path / "support.tar.gz")
    assert main(["plan", "--from-bundle", bundle]) == 0
    assert "the same plan as in the bundle" in capsys.readouterr().out
    assert main(["plan", "--from-bundle", bundle, "--set", "scheduler.max_num_seqs=2"]) == 2
    assert "scheduler.max_num_seqs: " in capsys.readouterr().out
    assert main(["plan", "--from-bundle", bundle, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "shared"


def test_the_code_that_runs_a_model_is_in_the_plan_of_its_bundle(shared: Path, tmp_path: Path) -> None:
    spec = plain(shared)
    spec.write_text(spec.read_text().replace("source: ./model\n", "source: ./model\n  model_impl: transformers\n"))
    members = bundle_of(spec, tmp_path)
    code = json.loads(members["plan.json"])["model"]["modelling"]
    assert [file["name"].rpartition("/")[2] for file in code["files"]] == [
        "modeling_llama.py",
        "configuration_llama.py",
    ]
    assert main(["plan", "--from-bundle", str(tmp_path / "support.tar.gz")]) == 0


def test_a_broken_spec_still_makes_a_bundle(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain(shared).write_text(shared.read_text() + "scheduler: {max_num_seqs: PLANTED-value}\n")
    members = bundle_of(shared, tmp_path)
    manifest = json.loads(members["bundle.json"])
    assert [(each["rule"], each["path"]) for each in manifest["diagnostics"]] == [
        ("value/type", "scheduler.max_num_seqs")
    ]
    assert not any(PLANTED in text for text in members.values())
    assert main(["plan", "--from-bundle", str(tmp_path / "support.tar.gz")]) == 2
    assert "has no plan to make again: it is invalid" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_here(shared: Path, tmp_path: Path) -> None:
    shared.write_text(shared.read_text().replace("./model", "hf://nobody/nothing/none.gguf"))
    members = bundle_of(shared, tmp_path)
    manifest = json.loads(members["bundle.json"])
    assert "plan.json" in manifest["missing"]
    assert "https://***@example.org/m?token=***" in members["spec.yaml"]
    assert not any(PLANTED in text for text in members.values())


def test_a_bundle_of_the_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path / "none"))
    file = tmp_path / "a.tar.gz"
    assert main(["doctor", "--bundle", str(file)]) == 0
    assert set(read_archive(file)) == {"bundle.json", "hardware.json"}


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.tar.gz"
    file.write_text("mine")
    assert main(["doctor", "--bundle", str(file)]) == 2
    assert file.read_text() == "mine"
    assert "is there already" in capsys.readouterr().err


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for member, data in members:
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return path


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("bundle.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    many = [(tarfile.TarInfo(f"f{index}"), b"") for index in range(MAX_MEMBERS + 1)]
    (tmp_path / "text").write_text("text")
    with gzip.open(tmp_path / "cut.tar.gz", "wb") as stream:
        stream.write(b"x" * 100)
    cases = {
        "is not there": tmp_path / "none",
        "is no bundle": tmp_path / "text",
        "is no bundle: ": tmp_path / "cut.tar.gz",
        "is no file": archive(tmp_path / "link.tar.gz", (link, b"")),
        "too large": archive(tmp_path / "many.tar.gz", *many),
    }
    for words, path in cases.items():
        with pytest.raises(BundleError, match=words):
            read_archive(path)


@pytest.mark.parametrize("arguments", [[], ["a.yaml", "--from-bundle", "b"], ["--from-bundle", "b", "--hardware", "x"]])
def test_options_that_do_not_go_together(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert "bundle" in capsys.readouterr().err


def test_short_secrets_do_not_tear_words() -> None:
    masker = Masker(["qwen", "long-enough"])
    assert masker.data({"a": "qwen", "b": "qwen2", "c": "is-long-enough"}) == {"a": "***", "b": "qwen2", "c": "is-***"}
