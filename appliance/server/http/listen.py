"""The listening socket, and its address in words."""

import errno
import os
import socket
import stat
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.plan.types import ServingPlan

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 256 * 1024  # of each connection in the kernel, else it grows to megabytes for who does not read
_SOCKET_MODE = 0o660


def bind(serving: ServingPlan) -> socket.socket:
    """Raises ApplianceError when the address cannot be had."""
    uds = serving.front.uds
    where = uds if uds is not None else f"{serving.host}:{serving.port}"
    try:
        listener = _bind_unix(Path(uds)) if uds is not None else _bind_tcp(serving.host, serving.port)
    except OSError as error:
        field = "uds" if uds is not None else "port"
        raise ApplianceError(
            f"cannot listen on {where}: {error.strerror or error}", hint=f"choose another endpoints.http.{field}"
        ) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return listener


def adopt(descriptor: int) -> socket.socket:
    """A listening socket that another server shares with us."""
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, serving: ServingPlan) -> str:
    """unix:/path for a Unix socket."""
    if serving.front.uds is not None:
        return f"unix:{serving.front.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if serving.front.tls is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def release(listener: socket.socket, serving: ServingPlan, *, is_shared: bool = False) -> None:
    """Closes the listener; a Unix socket leaves no file behind, unless another server listens on it."""
    listener.close()
    if serving.front.uds is not None and not is_shared:
        Path(serving.front.uds).unlink(missing_ok=True)


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _bind_unix(path: Path) -> socket.socket:
    """A socket that a dead server left is taken over; one that somebody listens on is not, nor is any other file."""
    if path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
        if _is_alive(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        old = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
