"""New weights of replicas, in a running server: all or none, and one that restarts comes back with them."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import make_random_model, serving
from tests.e2e.test_weight_updates import ask, update
from tests.server.harness import Server, wait_until

PROMPTS = [f"prompt {number} of several" for number in range(6)]
TWO = ("parallelism.data=2", "hardware.num_threads=1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("a", 7), ("b", 8)):
        (folder / name).mkdir()
        make_random_model(folder / name, seed=seed)
    return {"a": folder / "a", "b": folder / "b"}


def versions(server: Server) -> Any:
    with server.http() as http:
        return http.get("/get_weight_version").json()["engines"]


def engines_of(server: Server) -> list[int]:
    """The process ids of the engines."""
    pid = server.process.pid
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [each for each in children if b"appliance.engine" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_replicas_change_together_and_come_back_with_the_new_weights(models: dict[str, Path], tmp_path: Path) -> None:
    allowed = f"model.weight_update_paths=[{models['a'].parent}]"
    expected = {}
    for name, path in models.items():
        (tmp_path / name).mkdir()
        with serving(tmp_path / name, path) as one:
            expected[name] = [ask(one, prompt) for prompt in PROMPTS]
    assert expected["a"] != expected["b"]
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two", models["a"], allowed, *TWO) as server:
        assert [ask(server, prompt) for prompt in PROMPTS] == expected["a"]
        wrong = models["a"].parent / "wrong"
        shutil.copytree(models["b"], wrong)
        data = (wrong / "model.safetensors").read_bytes()
        (wrong / "model.safetensors").write_bytes(data[:-4096])
        refused = update(server, 400, model_path=str(wrong))
        assert "the weights stay as they are: engine 0" in refused["error"]["message"]
        assert [each["version"] for each in versions(server).values()] == [0, 0]
        assert [ask(server, prompt) for prompt in PROMPTS] == expected["a"]
        told = update(server, model_path=str(models["b"]), weight_version="step-1")
        digest = told["sha256"]
        assert {number: each["sha256"] for number, each in versions(server).items()} == {"0": digest, "1": digest}
        assert [ask(server, prompt) for prompt in PROMPTS] == expected["b"]
        killed = engines_of(server)[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(versions(server)) == 1, "one that is gone")
        for _ in range(3):
            assert [ask(server, prompt) for prompt in PROMPTS] == expected["b"]
            time.sleep(0.2)
        wait_until(lambda: len(versions(server)) == 2, "one that is back", 60.0)
        assert {each["sha256"] for each in versions(server).values()} == {digest}
        for _ in range(3):
            assert [ask(server, prompt) for prompt in PROMPTS] == expected["b"]
        # Without the checkpoint, one that restarts says why it cannot be one of them.
        models["b"].rename(models["b"].with_name("gone"))
        try:
            os.kill(engines_of(server)[0], signal.SIGKILL)

            def reason() -> bool:
                with server.http() as http:
                    return "cannot have the weights of the other engines" in http.get("/readyz").text

            wait_until(reason, "a reason", 60.0)
        finally:
            models["b"].with_name("gone").rename(models["b"])
        assert [ask(server, prompt) for prompt in PROMPTS] == expected["b"]
