"""A running engine process, as its supervisor sees it."""

import asyncio
import os
import signal
from contextlib import suppress

from appliance.service.engine_spawn import SpawnedEngine


class EngineChild:
    """Belongs to one event loop, whatever kind of loop that is: the process is watched through a descriptor."""

    def __init__(self, spawned: SpawnedEngine) -> None:
        self._process = spawned.process
        self._pipe = spawned.pipe
        self.socket = spawned.socket
        self.endpoint = spawned.endpoint

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code; negative is the signal that ended it."""
        if self._process.returncode is None:
            await process_end(self.pid)
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()  # does nothing once it has ended

    def release(self) -> None:
        """After the end: closes our end of the pipe."""
        os.close(self._pipe)


async def process_end(pid: int) -> None:
    """Returns when a child of ours has ended; it is not reaped yet."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    watched = os.pidfd_open(pid)  # readable when the process has ended, and is not reaped yet
    loop.add_reader(watched, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process ended with exit code {code}"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"the engine process was ended by {name}"
