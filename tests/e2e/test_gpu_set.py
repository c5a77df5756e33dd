"""A server of the executor of GPUs, on torch's CPU device."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.deploy.probe import ask_metrics
from appliance.deploy.sleep import read_sleep
from tests.e2e.served import NAME, make_random_model, serving
from tests.server.harness import Server

BLOCKS = 65536  # so many that the host's allocator gives each part back
CACHE_BYTES = BLOCKS * 16 * 2 * 2 * 2 * 16 * 2  # blocks, tokens, layers, keys and values, heads, columns, bf16
OVERRIDES = ("hardware.kernels.kernel_set=torch", "model.enable_sleep_mode=true", f"cache.num_blocks={BLOCKS}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gpu-set")
    (folder / "model").mkdir()
    make_random_model(folder / "model")
    with serving(folder, folder / "model", *OVERRIDES) as found:
        yield found


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_only_the_engine_loads_torch(server: Server) -> None:
    assert has_torch(server.engine_pid())
    assert not has_torch(server.process.pid)


def ask(server: Server, code: int = 200) -> Any:
    body = {"model": NAME, "prompt": "a long way to go", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    with server.http() as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == code, answer.text
    return answer.json()


def post(server: Server, path: str, code: int = 200) -> Any:
    with server.http() as http:
        answer = http.post(path)
    assert answer.status_code == code, answer.text
    return answer.json()


def is_sleeping(server: Server) -> Any:
    with server.http() as http:
        return http.get("/is_sleeping").json()


def resident(server: Server) -> int:
    pages = int(Path(f"/proc/{server.engine_pid()}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_gives_its_memory_back_and_says_the_same_afterwards(server: Server, level: int) -> None:
    post(server, "/sleep")
    post(server, "/wake_up")  # the host gave no memory for zeros that nobody had written; now they are written
    before, awake = ask(server)["choices"], resident(server)
    fell_asleep = post(server, f"/sleep?level={level}")
    assert fell_asleep["asleep"] == ["weights", "kv_cache"]
    assert fell_asleep["sleep_s"] > 0
    assert awake - resident(server) > CACHE_BYTES * 0.9
    assert "sleeps" in ask(server, 503)["error"]["message"]
    assert is_sleeping(server) == fell_asleep
    assert read_sleep(ask_metrics(server.url) or "") == {
        "is_sleeping": True, "level": level, "sleep_s": round(fell_asleep["sleep_s"], 3), "wake_s": 0.0,
    }  # fmt: skip
    assert post(server, "/wake_up?tags=weights")["asleep"] == ["kv_cache"]
    assert is_sleeping(server)["is_sleeping"]
    assert "sleeps" in ask(server, 503)["error"]["message"]
    woken = post(server, "/wake_up?tags=kv_cache")
    assert (woken["is_sleeping"], woken["level"]) == (False, level)
    assert woken["wake_s"] > 0
    told = read_sleep(ask_metrics(server.url) or "")
    assert told is not None
    assert (told["is_sleeping"], told["wake_s"]) == (False, round(woken["wake_s"], 3))
    assert ask(server)["choices"] == before


def test_a_second_sleep_changes_nothing_and_waking_brings_all_back(server: Server) -> None:
    first = post(server, "/sleep")
    assert post(server, "/sleep?level=2") == first
    assert post(server, "/wake_up")["asleep"] == []
    assert post(server, "/wake_up")["asleep"] == []
    assert ask(server)["choices"]


def test_open_requests_end_before_the_engine_sleeps(server: Server) -> None:
    body = {"model": NAME, "prompt": "a", "max_tokens": 4000, "temperature": 0, "stream": True, "ignore_eos": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert len(list(itertools.islice(lines, 6))) == 6
        post(server, "/sleep")
        assert len(list(lines)) < 7000  # two of each token
    post(server, "/wake_up")


def test_levels_and_tags_that_there_are_not(server: Server) -> None:
    assert post(server, "/sleep?level=3", 400)["error"]["param"] == "level"
    assert post(server, "/sleep?mode=wait", 400)["error"]["param"] == "mode"
    assert post(server, "/wake_up?tags=dreams", 400)["error"]["param"] == "tags"
    assert not is_sleeping(server)["is_sleeping"]
