"""Starting and ending the engine's process."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from appliance.base.environ import with_changes


class EngineChild:
    """A running engine process. It ends by itself when this process dies: it holds the read end of our pipe."""

    def __init__(self, process: Process, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls, command: Sequence[str], plan_path: Path, endpoint: str) -> Self:
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--plan", str(plan_path), "--socket", endpoint, "--parent-fd", str(read_end)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(read_end,),
                start_new_session=True,  # a terminal's Ctrl-C reaches the server alone, which then drains
                env=with_changes(PYTHONUNBUFFERED="1"),
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return cls(process, write_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code; negative is the signal that ended it."""
        return await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def release(self) -> None:
        """After the end: closes our end of the pipe."""
        os.close(self._pipe)


def engine_command() -> tuple[str, ...]:
    return (sys.executable, "-m", "appliance.engine")


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the engine process was ended by {name}"
