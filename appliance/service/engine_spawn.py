"""Starting an engine's process. Imports next to nothing, so that an engine loads while its server still imports."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.base.environ import with_changes


@dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """A process that will listen on `socket`. It ends by itself when we die: it holds the read end of our `pipe`."""

    process: "subprocess.Popen[bytes]"
    pipe: int
    socket: Path

    @property
    def endpoint(self) -> str:
        return endpoint_of(self.socket)


def engine_command() -> tuple[str, ...]:
    return (sys.executable, "-m", "appliance.engine")


def endpoint_of(socket: Path) -> str:
    return f"ipc://{socket}"


def spawn_engine(command: Sequence[str], plan: Path, socket: Path) -> SpawnedEngine:
    """Raises OSError."""
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, "--plan", str(plan), "--socket", endpoint_of(socket), "--parent-fd", str(read_end)],
            stdin=subprocess.DEVNULL,
            pass_fds=(read_end,),
            start_new_session=True,  # a terminal's Ctrl-C reaches the server alone, which then drains
            env=with_changes(PYTHONUNBUFFERED="1"),
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return SpawnedEngine(process, write_end, socket)


def first_socket(folder: Path) -> Path:
    """Of a server's first engine; those that follow have other names."""
    return folder / "engine-1"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Private, and with a short path: a Unix socket's name has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="appliance-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
