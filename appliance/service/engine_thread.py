"""An engine in a thread of the server's process, as its supervisor sees it."""

import asyncio
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from appliance.base.log import logger
from appliance.base.sockets import endpoint_of
from appliance.plan.types import EnginePlan

_log = logger("service")
THREAD_NAME = "engine"
_ABANDONED = 1  # the exit code of an engine that could not be waited for


class EngineThread:
    """Belongs to one event loop. It listens on `socket` like an engine's process, so that all else is the same.

    Nobody can end a thread: one that is killed is no longer waited for, and must end with the process.
    """

    def __init__(self, plan: Path, socket: Path, replica: int) -> None:
        """Starts the engine of a plan."""
        self.socket = socket
        self._code = 0
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(plan, replica), name=THREAD_NAME, daemon=True).start()

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

    def _run(self, plan: Path, replica: int) -> None:
        """Whatever fails ends the engine and not this thread alone, as its supervisor waits for the engine's end."""
        code = _ABANDONED
        try:
            code = _served(plan, self.endpoint, replica)
        except Exception:  # noqa: BLE001 - the log gets the traceback
            _log.exception("the engine could not start")
        finally:
            with suppress(RuntimeError):  # nobody waits any more, and the event loop is closed
                self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._ended.is_set():
            self._code = code
            self._ended.set()


def _served(plan: Path, endpoint: str, replica: int) -> int:
    """Runs the engine of a plan, and returns its exit code."""
    from appliance.engine.process import (  # noqa: PLC0415 - servers with an engine elsewhere stay small
        HEARTBEAT_S,
        SWITCH_INTERVAL_S,
        ServedEngine,
    )
    from appliance.engine.replica import as_replica  # noqa: PLC0415 - as above

    decoded = as_replica(msgspec.json.decode(plan.read_bytes(), type=EnginePlan), replica)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return ServedEngine(decoded, endpoint, None, HEARTBEAT_S).run()


def exit_with_engine(code: int) -> int:
    """Returns the code where no engine runs in this process. One that still does is not waited for: the process ends
    here, at once."""
    if any(each.name == THREAD_NAME for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
