"""Code of the operator's own is called for a bounded time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from appliance.base.bounded import MOST_HANGS, BoundedCalls, StoppedError, TookTooLongError


def spin() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # noqa: BLE001 - as careless code would have it
            continue


def test_what_answers_is_returned_and_what_raises_is_raised() -> None:
    calls = BoundedCalls(30.0)
    assert calls.run("mine", lambda: 3) == 3
    with pytest.raises(LookupError, match="mine"):
        calls.run("mine", lambda: (_ for _ in ()).throw(LookupError("mine")))
    assert calls.run("mine", lambda: 4) == 4


def test_what_would_end_the_process_is_said() -> None:
    def leave() -> None:
        raise SystemExit

    with pytest.raises(StoppedError, match="mine raised SystemExit"):
        BoundedCalls(30.0).run("mine", leave)


def test_what_hangs_is_given_up_and_ends() -> None:
    calls, before = BoundedCalls(0.05), threading.active_count()
    with pytest.raises(TookTooLongError, match=r"mine took more than 0\.05 s$"):
        calls.run("mine", spin)
    assert calls.run("other", lambda: 1) == 1
    deadline = time.monotonic() + 20
    while threading.active_count() > before + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before + 1, "the thread that hung has ended; the other is kept"


def test_what_hangs_often_is_called_no_more() -> None:
    calls, ran = BoundedCalls(0.02), []

    def hang() -> None:
        ran.append(1)
        spin()

    for _ in range(MOST_HANGS):
        with pytest.raises(TookTooLongError):
            calls.run("mine", hang)
    with pytest.raises(TookTooLongError, match="called no more"):
        calls.run("mine", hang)
    assert len(ran) == MOST_HANGS
    assert calls.run("other", lambda: 1) == 1


def test_calls_of_several_threads_do_not_wait_for_each_other() -> None:
    calls, together = BoundedCalls(30.0), threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: calls.run("mine", together.wait), range(4)))) == 4


def test_threads_end_with_their_owner() -> None:
    calls = BoundedCalls(60.0)
    thread = calls.run("plug-in", threading.current_thread)
    assert thread.is_alive()
    del calls
    thread.join(60.0)
    assert not thread.is_alive()
