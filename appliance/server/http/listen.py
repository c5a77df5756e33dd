"""The listening socket, and its address in words."""

import errno
import os
import socket
import stat
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.plan.serving_types import ListenPlan

_BACKLOG = 2048
_SEND_BUFFER_BYTES = 256 * 1024  # of each connection in the kernel, else it grows to megabytes for who does not read
_SOCKET_MODE = 0o660
_OF_HOST = (0, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class AddressError(ApplianceError):
    """The address cannot be had. `number` is the system's own, 0 where the host has no address."""

    def __init__(self, where: str, number: int, reason: str, hint: str) -> None:
        super().__init__(f"cannot listen on {where}: {reason}", hint=hint)
        self.number = number


def bind(listen: ListenPlan) -> socket.socket:
    """Raises AddressError."""
    uds = listen.uds
    where = uds if uds is not None else f"{listen.host}:{listen.port}"
    try:
        listener = _bind_unix(Path(uds)) if uds is not None else _bind_tcp(listen.host, listen.port)
    except OSError as error:
        raise _refused(where, listen, error) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return listener


def _refused(where: str, listen: ListenPlan, error: OSError) -> AddressError:
    """Builds the error from the system's words: socket.create_server adds the address to them once more."""
    number = 0 if isinstance(error, socket.gaierror) else error.errno or 0
    is_own = listen.uds is not None or not number  # then the words are more exact than the number
    reason = (error.strerror or str(error)) if is_own else os.strerror(number)
    field = "uds" if listen.uds is not None else "host" if number in _OF_HOST else "port"
    hint = f"choose another endpoints.http.{field}"
    if number == errno.EACCES and field == "port":
        hint = "ports below 1024 need a privilege (CAP_NET_BIND_SERVICE); " + hint
    return AddressError(where, number, reason, hint)


def adopt(descriptor: int) -> socket.socket:
    """A listening socket that another server shares with us."""
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, listen: ListenPlan) -> str:
    """unix:/path for a Unix socket."""
    if listen.uds is not None:
        return f"unix:{listen.uds}"
    host, port = listener.getsockname()[:2]
    return f"{listen.scheme}://[{host}]:{port}" if ":" in host else f"{listen.scheme}://{host}:{port}"


def release(listener: socket.socket, listen: ListenPlan, *, is_shared: bool = False) -> None:
    """Closes the listener and removes the file of a Unix socket, unless another server listens on it."""
    listener.close()
    if listen.uds is not None and not is_shared:
        Path(listen.uds).unlink(missing_ok=True)


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _bind_unix(path: Path) -> socket.socket:
    """Takes over the socket of a dead server, but not one on which a server listens, nor any other file."""
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
