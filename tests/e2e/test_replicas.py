"""Two replicas of a real model answer as one engine does, whichever of them is asked."""

import concurrent.futures
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.replicas_through_changes import changed_under_streams
from tests.e2e.served import make_random_model, serving
from tests.e2e.test_streams_through_changes import deployed_in
from tests.server.harness import Server

PROMPTS = [f"once upon a time number {number}, " * (1 + number % 3) for number in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    return folder


def answers(server: Server) -> list[tuple[list[str], list[float]]]:
    """Texts and log-probabilities of several prompts that are asked at once: greedy, and drawn with a seed, n = 2."""

    def ask(prompt: str) -> tuple[list[str], list[float]]:
        body = {
            "model": "random", "prompt": prompt, "max_tokens": 16, "temperature": 0.8, "seed": 5, "n": 2, "logprobs": 1,
        }  # fmt: skip
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
        return [each["text"] for each in choices], [x for each in choices for x in each["logprobs"]["token_logprobs"]]

    with server.http() as http, concurrent.futures.ThreadPoolExecutor(6) as pool:
        return list(pool.map(ask, PROMPTS))


def finished_by_engine(server: Server) -> dict[str, float]:
    with server.http() as http:
        families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {
        each.labels["engine"]: each.value
        for each in samples
        if each.name == "appliance_requests_finished_total" and each.labels["finished_reason"] == "length"
    }


def test_tokens_do_not_depend_on_the_replica(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "one", model) as server:
        expected = answers(server)
    with serving(tmp_path / "two", model, "parallelism.data=2", "hardware.num_threads=1") as server:
        assert answers(server) == expected
        assert answers(server) == expected  # from caches
        shares = finished_by_engine(server)
    assert set(shares) == {"0", "1"}
    assert min(shares.values()) >= 6


async def test_applies_under_streams(tmp_path: Path) -> None:
    """A small form of `python -m tests.e2e.replicas_through_changes`."""
    with deployed_in(tmp_path) as deployment:
        report = await changed_under_streams(deployment, num_changes=2, num_streams=40)
    assert report.is_good, report
    assert report.num_streams >= 40
