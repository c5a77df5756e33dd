"""Raw sockets to a server: for what no HTTP client would send."""

import re
import socket
from urllib.parse import urlsplit

from tests.server.harness import Server

_TIMEOUT_S = 20.0


def connect(server: Server, *, receive_buffer: int | None = None) -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(_TIMEOUT_S)
    connection.connect((parts.hostname, parts.port))
    return connection


def until_closed(connection: socket.socket) -> bytes:
    """Everything the server says until it closes. A reset counts as closed."""
    pieces = []
    while True:
        try:
            piece = connection.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


def exchange(server: Server, data: bytes) -> bytes:
    """Sends `data` and reads until the server closes; it must do so by itself."""
    with connect(server) as connection:
        connection.sendall(data)
        return until_closed(connection)


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def request(method: str, path: str, body: bytes = b"", *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *headers]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
