"""The page that API processes share: rows, levels and open requests, by processes that come, go and are killed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.server.workers import page as pages
from appliance.server.workers.page import SharedPage

NUM_WORKERS = 3


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[SharedPage]]:
    made = [SharedPage.make(tmp_path / "page", NUM_WORKERS)]
    made += [SharedPage(tmp_path / "page", index, NUM_WORKERS) for index in range(1, NUM_WORKERS)]
    yield made
    for each in made:
        each.close()


def test_each_sees_what_the_others_have_open(workers: list[SharedPage]) -> None:
    for number, worker in enumerate(workers, 1):
        worker.note(number, 1000 * number)
    assert [worker.others() for worker in workers] == [(5, 5000), (4, 4000), (3, 3000)]
    workers[0].clear(2)
    assert [worker.others() for worker in workers] == [(2, 2000), (1, 1000), (3, 3000)]


def test_a_key_is_one_account_everywhere(workers: list[SharedPage]) -> None:
    accounts = [worker.account("team-a") for worker in workers]
    other = workers[1].account("team-b")
    assert other is not None
    assert all(accounts)
    first, second, third = (account for account in accounts if account is not None)
    with first.tokens as level:
        level.used, level.at = 0.5, 12.0
    with third.tokens as level:
        assert (level.used, level.at) == (0.5, 12.0)
    for level in (third.requests, other.tokens, other.requests):
        with level:
            assert (level.used, level.at) == (0.0, 0.0)
    assert first.try_open(2)
    assert second.try_open(2)
    assert not third.try_open(2)
    assert other.try_open(1)
    first.close()
    assert third.try_open(2)


def test_what_a_killed_worker_had_open_is_given_back(workers: list[SharedPage]) -> None:
    names = [f"key {number}" for number in range(4)]
    for name in names:
        account = workers[1].account(name)
        assert account is not None
        assert account.try_open(1)
    workers[0].clear(1)
    for name in names:
        account = workers[2].account(name)
        assert account is not None
        assert account.try_open(1)


def test_a_full_page_has_no_further_account(workers: list[SharedPage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_KEYS", 3)
    assert all(workers[0].account(f"key {number}") is not None for number in range(3))
    assert workers[1].account("one more") is None
    assert workers[1].account("key 2") is not None


def test_the_lock_of_a_killed_worker_is_released(workers: list[SharedPage], tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from appliance.server.workers.page import SharedPage\n"
        f"page = SharedPage(Path(sys.argv[1]), 1, {NUM_WORKERS})\n"
        "with page.locked(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "page")], timeout=30, check=False)
    assert killed.returncode == -9
    account = workers[0].account("team-a")
    assert account is not None
    assert account.try_open(1)
