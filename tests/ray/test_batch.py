"""Batches on a cluster of two nodes."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.jobs.answerer import LineReply
from appliance.jobs.answering import BatchStoppedError
from appliance.ray.batch import EnginePool
from tests.e2e.conftest import CommandLine, free_port
from tests.e2e.test_batch import NUM_LINES, has_a_line, request
from tests.ray.conftest import SPEC
from tests.server.harness import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Ray are not ours


@pytest.fixture(scope="module")
def spec(echo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batch") / "echo.yaml"
    path.write_text(SPEC.format(model=echo_model, port=free_port()) + "batch: {backend: ray, num_replicas: 2}\n")
    return path


@pytest.fixture(scope="module")
def second_node(cluster: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=1, memory=2 << 30, object_store_memory=100 << 20)
    yield node
    cluster.remove_node(node)


@pytest.fixture
def command_line(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return CommandLine(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([*(request(n) for n in range(NUM_LINES)), '{"custom_id": "bad"}']) + "\n")
    return path


def contents(path: Path) -> list[Any]:
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    assert answers[-1]["error"]["code"] == "invalid_method"
    return [each["response"]["body"]["choices"][0]["message"]["content"] for each in answers[:-1]]


def test_a_batch_goes_on_after_its_driver_was_killed(
    command_line: CommandLine, spec: Path, source: Path, second_node: Any, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    command = command_line.command("batch", spec, "-i", source, "-o", target, "--max-concurrency", 1)
    with subprocess.Popen(command, env=command_line.environment, stderr=subprocess.DEVNULL) as killed:
        wait_until(lambda: has_a_line(target) or killed.poll() is not None, "nothing was written", timeout_s=90.0)
        killed.kill()
    written = target.read_bytes().count(b"\n")
    summary = command_line.json("batch", spec, "-i", source, "-o", target)
    assert 0 < written <= NUM_LINES
    assert (summary["requests"], summary["failed"], summary["resumed"]) == (NUM_LINES + 1, 1, written)
    assert contents(target) == [f"line {number}" for number in range(NUM_LINES)]


def test_more_engines_than_have_room_are_refused_by_node(
    command_line: CommandLine, spec: Path, source: Path, tmp_path: Path
) -> None:
    done = command_line.run(
        "batch", spec, "-i", source, "-o", tmp_path / "out.jsonl", "--set", "batch.num_replicas=100", code=3
    )
    assert "the Ray cluster has no room for 100 engines" in done.stderr
    assert "node 127.0.0.1: room for" in done.stderr


def test_a_stage_of_ray_data_gives_the_lines_of_the_batch(cluster: Any, spec: Path, source: Path) -> None:
    import ray

    from appliance.ray.data import AnswerLines

    lines = ray.data.read_text(str(source))
    answered = lines.map_batches(AnswerLines, **AnswerLines.arguments(spec, batch_size=8)).take_all()
    assert len(answered) == NUM_LINES + 1
    for row in answered:
        asked, answer = json.loads(row["text"]), json.loads(row["answer"])
        assert answer["custom_id"] == asked["custom_id"]
        if "body" not in asked:
            assert answer["error"]["code"] == "invalid_method"
            continue
        said = answer["response"]["body"]["choices"][0]["message"]["content"]
        assert said == asked["body"]["messages"][0]["content"]


class LostError(Exception):
    """Stands for Ray's."""


class Method:
    def __init__(self, call: Any) -> None:
        self.remote = call


class Actor:
    """An engine that is lost in some of its lives."""

    def __init__(self, *lives: int) -> None:
        """lives: lines that each life answers."""
        self.lives = list(lives)
        self.load, self.answer = Method(self._load), Method(self._answer)

    async def _load(self) -> None:
        if not self.lives:
            raise LostError("it is not started again")

    async def _answer(self, path: str, body: bytes) -> LineReply:
        await asyncio.sleep(0)
        if not self.lives or self.lives[0] == 0:
            self.lives = self.lives[1:]
            raise LostError("the node is gone")
        self.lives[0] -= 1
        return LineReply(200, "", body)


def ray_of(*actors: Actor) -> Any:
    return SimpleNamespace(exceptions=SimpleNamespace(RayError=LostError), kill=lambda *_, **__: None)


async def test_a_line_whose_engine_is_lost_is_asked_of_another() -> None:
    actors = Actor(3, 100), Actor(5, 100)
    pool = EnginePool(ray_of(), actors)
    await pool.first_ready()
    replies = [await pool.answer("/v1", str(number).encode()) for number in range(20)]
    assert [reply.body for reply in replies] == [str(number).encode() for number in range(20)]


async def test_a_batch_stops_when_no_engine_is_left() -> None:
    pool = EnginePool(ray_of(), [Actor(2)])
    await pool.first_ready()
    assert [(await pool.answer("/v1", b"")).status for _ in range(2)] == [200, 200]
    with pytest.raises(BatchStoppedError, match="no engine is left"):
        await pool.answer("/v1", b"")
