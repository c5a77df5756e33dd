"""What a leader finds out of a rank that says nothing, or that does nothing."""

import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

from appliance.engine.ranks.handles import RankStartError
from appliance.engine.ranks.messages import ENCODE, Beat, Loaded, RankEnded
from appliance.engine.ranks.rank_process import RankProcess
from appliance.engine.ranks.turns import LoadingTurns
from tests.server.harness import wait_until


class FakeHandle:
    """A rank that is a connection of the test."""

    phase = "interpreter"

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.rank, self._leader = Connection(ours.detach()), Connection(theirs.detach())

    def connect(self, first: Any) -> Connection:
        return self._leader

    def wait(self, timeout_s: float | None = None) -> str | None:
        return "its connection ended"

    def kill(self) -> None:
        self.rank.close()


class First:
    rank = 1


@pytest.fixture
def handle() -> FakeHandle:
    return FakeHandle()


@pytest.fixture
def process(handle: FakeHandle) -> RankProcess:
    first: Any = First()
    process = RankProcess(first, handle, lambda: None, lambda rank, handed: None, LoadingTurns(None))
    handle.rank.send_bytes(ENCODE(Loaded({})))
    process.wait_loaded(lambda *_: None)
    return process


def test_a_rank_is_missed_when_it_does_not_beat(process: RankProcess, handle: FakeHandle) -> None:
    assert process.silence_s(time.monotonic() + 9) > 8
    handle.rank.send_bytes(ENCODE(Beat(0, 7)))
    wait_until(lambda: process.num_waits == 7, "the beat is heard")
    assert process.silence_s(time.monotonic()) < 1
    process.kill()


def test_a_rank_that_beats_and_does_nothing_is_missed(process: RankProcess, handle: FakeHandle) -> None:
    process.send(b"a step")
    told = time.monotonic()
    for number in range(1, 4):  # it beats, and has not done the step
        handle.rank.send_bytes(ENCODE(Beat(0, 0)))
        time.sleep(0.05 * number)
    now = time.monotonic()
    assert process.silence_s(now) >= now - told
    handle.rank.send_bytes(ENCODE(Beat(1, 0)))
    wait_until(lambda: process.silence_s(now := time.monotonic()) < now - told - 0.2, "it has done the step")
    process.kill()


@pytest.mark.parametrize("blames", [True, False])
def test_a_rank_says_whether_another_is_to_blame(blames: bool, process: RankProcess, handle: FakeHandle) -> None:
    handle.rank.send_bytes(ENCODE(RankEnded("a reason", blames_other=blames)))
    handle.rank.close()
    wait_until(lambda: process.reason is not None, "its end is known")
    assert (process.reason, process.blames_other) == ("rank 1 ended: a reason", blames)


def test_a_connection_that_broke_is_followed_by_its_reason(
    process: RankProcess, handle: FakeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def wait(timeout_s: float | None = None) -> str:
        ended.wait(10)
        return "it was ended by SIGKILL"

    monkeypatch.setattr(handle, "wait", wait)
    assert not process.is_leaving
    handle.rank.close()
    process.send(b"a step")
    assert process.is_leaving
    ended.set()
    wait_until(lambda: process.reason is not None, "the reason is known")
    assert process.reason == "rank 1 ended: it was ended by SIGKILL"
    assert not process.is_leaving


def test_whatever_ends_the_talk_with_a_rank_is_told_to_who_waits(
    handle: FakeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(first: Any) -> Connection:
        raise OverflowError("an integer of more than 64 bits")

    monkeypatch.setattr(handle, "connect", connect)
    first: Any = First()
    failed = threading.Event()
    process = RankProcess(first, handle, failed.set, lambda rank, handed: None, LoadingTurns(None))
    with pytest.raises(RankStartError, match="cannot talk with rank 1: OverflowError: an integer"):
        process.wait_loaded(lambda *_: None)
    assert failed.wait(5)
