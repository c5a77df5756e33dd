"""A loader of weights of the guide, and one that fails, through a server that is started with them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from appliance.base.errors import SpecError
from appliance.cli.app import main
from appliance.plan.prepare import prepare
from tests.checkpoint.encrypted_files import key_file
from tests.checkpoint.tensorizer_files import write_tensors
from tests.e2e.served import make_random_model, serving
from tests.server.harness import Server

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/plugins.md").read_text().split("### Loaders of weights\n")[1].split("\n### ")[0]
ASKED = {"model": "random", "prompt": "hello", "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 1}


def answer(server: Server) -> object:
    with server.http() as http:
        choice = http.post("/v1/completions", json=ASKED).json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_the_loader_of_the_guide_gives_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
    spec = re.findall(r"loading: .*", GUIDE)[0]
    assert "my_plugins.npz.Npz" in spec
    (tmp_path / "my_plugins").mkdir()
    (tmp_path / "my_plugins/npz.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    (tmp_path / "plain").mkdir()
    with serving(tmp_path / "plain", model) as server:
        expected = answer(server)
    np.savez(model / "weights.npz", **load_file(model / "model.safetensors"))
    (model / "model.safetensors").unlink()
    overrides = ["loading=" + spec.removeprefix("loading: "), "decoding={trust_plugins: true}"]
    with serving(tmp_path, model, *overrides) as server:
        assert answer(server) == expected


def test_a_file_of_tensorizer_and_files_of_pytorch_give_the_same_answers(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    folders = [tmp_path / name for name in ("plain", "tensorizer", "npcache")]
    for folder in folders:
        folder.mkdir()
    with serving(folders[0], model) as server:
        expected = answer(server)
    arrays = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    write_tensors(model / "model.tensors", arrays)
    with serving(folders[1], model, "loading.load_format=tensorizer") as server:
        assert answer(server) == expected
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, model / "pytorch_model.bin")
    with serving(folders[2], model, "loading.load_format=npcache") as server:
        assert answer(server) == expected
    plan = prepare(folders[2] / "spec.yaml", ["loading.load_format=npcache"]).plan
    assert any(each.path == "model.format" and "mapped where they lie" in each.reason for each in plan.decisions)


def test_weights_by_rank_give_the_same_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance shard`, and a server of two ranks of which each maps its own file."""
    model, tensor = tmp_path / "model", "parallelism.tensor=2"
    model.mkdir()
    make_random_model(model)
    ranks = (tensor, "hardware.num_threads=1")
    folders = [tmp_path / name for name in ("plain", "by-rank")]
    for folder in folders:
        folder.mkdir()
    with serving(folders[0], model) as server:
        expected = answer(server)
    assert main(["shard", str(folders[0] / "spec.yaml"), "--set", tensor, "--output", str(tmp_path / "state")]) == 0
    assert "2 (tensor: 2, pipeline: 1)" in capsys.readouterr().out
    model.rename(tmp_path / "gone")
    with serving(folders[1], tmp_path / "state", *ranks, "loading.load_format=sharded_state") as server:
        assert answer(server) == expected
    with pytest.raises(SpecError, match="written for tensor: 2, and the plan has 1"):
        prepare(folders[1] / "spec.yaml")


def test_an_encrypted_file_gives_the_same_answers_and_its_key_is_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("nacl", reason="pynacl is not installed")
    model, folders = tmp_path / "model", [tmp_path / name for name in ("plain", "sealed", "wrong")]
    for folder in (model, *folders):
        folder.mkdir()
    make_random_model(model)
    with serving(folders[0], model) as server:
        expected = answer(server)
    key = key_file(tmp_path, b"0nly-for-this-test-of-32-bytes-k")
    spec, out = str(folders[0] / "spec.yaml"), str(tmp_path / "out")
    command = ["serialize", spec, "-o", out, "--encryption-keyfile", key.path]
    assert main(command) == 0
    overrides = ["loading.load_format=tensorizer", f"loading.model_loader_extra_config.encryption_keyfile={key.path}"]
    paths = f"model.weight_update_paths=[{tmp_path}]"
    more = ("parallelism.data=2", "model.enable_sleep_mode=true")
    with serving(folders[1], tmp_path / "out", *overrides, paths, *more) as server:
        assert answer(server) == answer(server) == expected
        with server.http() as http:
            for verb in ("sleep?level=2", "wake_up"):
                assert http.post(f"/{verb}", timeout=60.0).status_code == 200
        assert answer(server) == answer(server) == expected
        with server.http() as http:
            updated = http.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "out")}, timeout=60.0)
            assert updated.status_code == 200, updated.text
        assert answer(server) == expected
    Path(key.path).write_bytes(b"1nly-for-this-test-of-32-bytes-k")
    overrides.append("restart={policy: never}")
    with pytest.raises(AssertionError), serving(folders[2], tmp_path / "out", *overrides):
        pass
    events = [json.loads(line) for line in (folders[2] / "status.jsonl").read_text().splitlines()]
    reason = next(each["reason"] for each in events if each["event"] == "failed")
    assert "cannot be opened: the key is another one, or its bytes were changed" in reason
    told = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(told) >= 6
    assert not any(b"nly-for-this-test" in path.read_bytes() for path in told)


def test_a_loader_that_fails_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    make_random_model(model)
    overrides = [
        "loading={load_format: custom, loader_cls: tests.checkpoint.own_loaders.Raises}",
        "decoding={trust_plugins: true}",
        "restart={policy: never}",
    ]
    with pytest.raises(AssertionError, match="the server cannot run"), serving(tmp_path, model, *overrides):
        pass
    events = [json.loads(line) for line in (tmp_path / "status.jsonl").read_text().splitlines()]
    reason = next(each["reason"] for each in events if each["event"] == "failed")
    assert "loading.loader_cls: tests.checkpoint.own_loaders.Raises raised LookupError: no model." in reason
    assert "\n" not in reason
