"""The thread of an event loop: a close ends every call by its name, whenever the call began."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from appliance.offline.errors import ClosedError
from appliance.offline.loop_thread import LoopThread


def test_a_call_that_a_close_ends_is_told_of_it() -> None:
    thread, begun, told = LoopThread(), threading.Event(), list[BaseException]()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.call(never)
        except (ClosedError, CancelledError, RuntimeError) as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(10)
    thread.close()
    waiting.join(10)
    [error] = told
    assert isinstance(error, ClosedError)


def test_a_call_that_is_cancelled_in_an_open_thread_is_just_that() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    thread = LoopThread()
    with pytest.raises(CancelledError):
        thread.call(cancelled)
    thread.close()


def test_a_call_beside_a_close_is_answered_or_told() -> None:
    for _ in range(50):
        thread, told = LoopThread(), list[BaseException]()

        def ask(thread: LoopThread = thread, told: list[BaseException] = told) -> None:
            try:
                while True:
                    thread.call(lambda: asyncio.sleep(0))
            except (ClosedError, CancelledError, RuntimeError) as error:
                told.append(error)

        asking = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for each in asking:
            each.start()
        thread.close()
        for each in asking:
            each.join(10)
        assert [type(each) for each in told] == [ClosedError] * 4
