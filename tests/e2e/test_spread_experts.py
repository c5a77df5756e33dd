"""Replicas that have the experts of a model among them: a real server, its processes, and what is left of them."""

from pathlib import Path

import pytest

from tests.e2e.served import make_random_mixture, serving
from tests.e2e.test_replicas import answers, finished_by_engine

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
