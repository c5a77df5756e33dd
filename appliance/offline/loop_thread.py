"""An event loop in a thread of its own, so that plain calls work, in a notebook's running loop too."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from appliance.offline.errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread of the process that made it, until `close`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(thread_name_prefix="appliance-offline")
        self._loop.set_default_executor(self._workers)
        self._is_closed = False
        self._turn = threading.RLock()  # nothing starts behind the stop; garbage that is collected in it may close
        self._thread = threading.Thread(target=self._run, name="appliance-offline", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        return not self._is_closed and self.is_own

    @property
    def is_own(self) -> bool:
        """Returns whether this is the process that made the thread: a fork has a copy without it."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raises ClosedError if nothing can run any more, or not in this process."""
        if not self.is_own:
            raise ClosedError(
                "the engine runs in the process that was forked, and cannot be used in this one",
                hint="make the LLM in the child, or start children with the method 'spawn'",
            )
        if self._is_closed:
            raise ClosedError("the engine was closed")

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Starts a coroutine, and returns its result to come. Raises ClosedError."""
        self.check()  # before the lock, which a fork may have a copy of that nobody gives back
        with self._turn:
            self.check()
            return asyncio.run_coroutine_threadsafe(make(), self._loop)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine to its end; a caller that is interrupted ends it. Raises ClosedError."""
        if threading.current_thread() is self._thread:
            raise ClosedError("a callback of the engine cannot wait for the engine")
        future = self.start(make)
        try:
            return future.result()
        except CancelledError:
            self.check()
            raise
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the thread. Safe to call twice, and in a fork, where it does nothing."""
        if not self.is_own:
            return
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks(self._loop))
            self._workers.shutdown()  # asyncio's own way starts a thread, which a process that ends cannot
            self._loop.close()


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the tasks that still run, so that their callers hear of it."""
    tasks = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
