"""Where a server and its engines meet: Unix sockets in a private folder of the server's. Imports next to nothing."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_IPC = "ipc://"
_FOLDER_PREFIX = "appliance-"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Private, and with a short path: a Unix socket's name has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def endpoint_of(socket: Path) -> str:
    return f"{_IPC}{socket}"


def remove_orphan(endpoint: str) -> None:
    """The socket, and the folder that held it, of a server that was killed. Other folders stay."""
    if not endpoint.startswith(_IPC):
        return
    socket = Path(endpoint.removeprefix(_IPC))
    with suppress(OSError):
        socket.unlink()
        if socket.parent.name.startswith(_FOLDER_PREFIX):
            socket.parent.rmdir()  # fails where something else is in it
