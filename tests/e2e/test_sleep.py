"""A server on a CPU set that gives its memory back on demand: measured by the system, with weights of every origin."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import make_random_model, serving
from tests.e2e.test_gpu_set import (
    ask,
    is_sleeping,
    post,
    test_a_second_sleep_changes_nothing_and_waking_brings_all_back,
    test_levels_and_tags_that_there_are_not,
    test_open_requests_end_before_the_engine_sleeps,
)
from tests.server.harness import Server, wait_until

__all__ = [
    "test_a_second_sleep_changes_nothing_and_waking_brings_all_back",
    "test_levels_and_tags_that_there_are_not",
    "test_open_requests_end_before_the_engine_sleeps",
]

SLEEPS = "model.enable_sleep_mode=true"
MIB = 1 << 20
PREFAULT = 48 * MIB  # of the cache
WEIGHTS = 4 * 3 * 24576 * 64 * 2  # of the feed-forwards of the layers, in bf16
SIZED = (SLEEPS, "cache.num_blocks=16384", "cache.prefault=48MiB")
WAYS = {"packed": ("loading.keep_packed=false",), "kept": (), "mapped": (), "copied": ("loading.packed_access=copy",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder, num_layers=4, inner=24576)  # enough weights to be kept
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), model, *SIZED) as found:
        yield found


def own_bytes(pid: int) -> int:
    """The memory that a process alone has (proc(5), smaps_rollup): its share of libraries changes as others come and
    go."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10


def settled(server: Server) -> int:
    """The engine's memory once it has made its cache resident."""
    found = [own_bytes(server.engine_pid())]

    def is_still() -> bool:
        time.sleep(0.2)
        found.append(own_bytes(server.engine_pid()))
        return abs(found[-1] - found[-2]) < MIB

    wait_until(is_still, "a still memory")
    return found[-1]


@pytest.mark.parametrize("way", WAYS)
def test_the_system_has_its_memory_while_it_sleeps(way: str, model: Path, tmp_path: Path) -> None:
    folder = f"loading.packed_dir={tmp_path / 'packed'}"
    if way in ("mapped", "copied"):
        with serving(_made(tmp_path / "first"), model, SLEEPS, folder):
            wait_until(lambda: list((tmp_path / "packed").glob("*.packed")), "kept weights", 30.0)
    with serving(_made(tmp_path / "server"), model, *SIZED, folder, *WAYS[way]) as server:
        before, awake = ask(server)["choices"], settled(server)
        for level in (1, 2):
            post(server, f"/sleep?level={level}")
            freed = awake - settled(server)
            weights = 0 if (way, level) == ("packed", 1) else WEIGHTS
            assert freed > 0.95 * (PREFAULT + weights), (level, freed / MIB)
            assert is_sleeping(server)["asleep"] == ["weights", "kv_cache"]
            assert "sleeps" in ask(server, 503)["error"]["message"]
            post(server, "/wake_up?tags=weights")
            assert post(server, "/wake_up?tags=kv_cache")["wake_s"] > 0
            assert ask(server)["choices"] == before
            wait_until(lambda: abs(settled(server) - awake) < 8 * MIB, "as much memory as before")


def test_level_2_is_refused_where_weights_were_replaced(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, model, SLEEPS, f"model.weight_update_paths=[{model.parent}]") as server:
        with server.http() as http:
            assert http.post("/update_weights_from_disk", json={"model_path": str(model)}).status_code == 200
        refused = post(server, "/sleep?level=2", 400)["error"]
        assert (refused["param"], refused["code"]) == ("level", "sleep_refused")
        assert "level 1 keeps them" in refused["message"]
        assert not is_sleeping(server)["is_sleeping"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_replicas_sleep_together_or_by_number(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, model, SLEEPS, "parallelism.data=2", "hardware.num_threads=1") as server:
        before = ask(server)["choices"]
        slept = post(server, "/sleep?engine=1")
        assert slept["engines"] == {"1": {each: slept[each] for each in slept if each != "engines"}}
        told = is_sleeping(server)
        assert [told["engines"][each]["is_sleeping"] for each in ("0", "1")] == [False, True]
        assert told["is_sleeping"]
        for _ in range(4):  # the other one answers all
            assert ask(server)["choices"] == before
        assert post(server, "/sleep?engine=7", 400)["error"]["param"] == "engine"
        post(server, "/sleep?level=2")
        assert "sleeps" in ask(server, 503)["error"]["message"]
        levels = {number: each["level"] for number, each in is_sleeping(server)["engines"].items()}
        assert levels == {"0": 2, "1": 1}  # one that slept already sleeps as it did
        assert post(server, "/wake_up?engine=0&tags=weights&tags=kv_cache")["is_sleeping"] is False
        assert ask(server)["choices"] == before
        assert not post(server, "/wake_up")["is_sleeping"]
        assert [ask(server)["choices"] for _ in range(4)] == [before] * 4
