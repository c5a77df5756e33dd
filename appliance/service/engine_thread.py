"""An engine in a thread of the server's process, as its supervisor sees it."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from appliance.base.sockets import endpoint_of
from appliance.plan.types import EnginePlan

THREAD_NAME = "engine"
_ABANDONED = 1  # the exit code of an engine that could not be waited for


class EngineThread:
    """Belongs to one event loop. It listens on `socket` like an engine's process, so that all else is the same.

    Nobody can end a thread: one that is killed is no longer waited for, and must end with the process.
    """

    def __init__(self, plan: Path, socket: Path, replica: int) -> None:
        """Starts the engine of a plan. Raises OSError and msgspec.DecodeError if the plan cannot be read."""
        from appliance.engine.process import (  # noqa: PLC0415 - servers with an engine elsewhere stay small
            HEARTBEAT_S,
            SWITCH_INTERVAL_S,
            ServedEngine,
        )
        from appliance.engine.replica import as_replica  # noqa: PLC0415 - as above

        decoded = as_replica(msgspec.json.decode(plan.read_bytes(), type=EnginePlan), replica)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.socket = socket
        self._code = 0
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        engine = ServedEngine(decoded, endpoint_of(socket), None, HEARTBEAT_S)
        threading.Thread(target=self._run, args=(engine.run,), name=THREAD_NAME, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return endpoint_of(self.socket)

    async def wait(self) -> int:
        """Returns what the exit code of a process would be."""
        await self._ended.wait()
        return self._code

    def kill(self) -> None:
        if not self._ended.is_set():
            self._code = _ABANDONED
            self._ended.set()

    def release(self) -> None:
        """Does nothing: a thread holds no descriptors for us."""

    def _run(self, serve: Callable[[], int]) -> None:
        code = _ABANDONED
        try:
            code = serve()
        finally:
            with suppress(RuntimeError):  # nobody waits any more, and the event loop is closed
                self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._ended.is_set():
            self._code = code
            self._ended.set()


def exit_with_engine(code: int) -> int:
    """Returns the code where no engine runs in this process. One that still does is not waited for: the process ends
    here, at once."""
    if any(each.name == THREAD_NAME for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
