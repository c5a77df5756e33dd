"""Replicas that have the experts of a model among them: a real server, its processes, and what is left of them."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.served import make_random_mixture, serving
from tests.e2e.test_ranks import ranks, status_of
from tests.e2e.test_replicas import answers, finished_by_engine
from tests.engine.test_rank_group import machine_with
from tests.server.harness import wait_until

SPREAD = ("parallelism.data=2", "parallelism.expert=true", "hardware.num_threads=1", "restart.backoff=100ms")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make_random_mixture(folder)
    return folder


def test_tokens_are_those_of_one_engine(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "one", model) as server:
        expected = answers(server)
    with serving(tmp_path / "two", model, *SPREAD) as server:
        assert answers(server) == expected
        assert answers(server) == expected  # from caches
        shares = finished_by_engine(server)
    assert set(shares) == {"0", "1"}
    assert min(shares.values()) >= 6


def test_each_replica_may_have_ranks(model: Path, tmp_path: Path) -> None:
    """A rank that is gone takes all replicas along, and all come back."""
    (tmp_path / "one").mkdir()
    (tmp_path / "four").mkdir()
    with serving(tmp_path / "one", model) as server:
        expected = answers(server)
    overrides = (*SPREAD, "parallelism.tensor=2")
    with serving(tmp_path / "four", model, *overrides, hardware=machine_with(4, tmp_path)) as server:
        assert answers(server) == expected
        assert set(finished_by_engine(server)) == {"0", "1"}
        before = ranks()
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(ranks()) - set(before)) == 2, "both groups start again", timeout_s=60.0)
        wait_until(lambda: status_of(server, "/readyz") == 200, "they are ready again", timeout_s=60.0)
        assert answers(server) == expected
    wait_until(lambda: ranks() == [], "no rank is left behind", timeout_s=10.0)
