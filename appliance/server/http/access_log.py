"""One line for each HTTP answer. Never a header, a query or a body: keys and prompts are in those."""

import time

from starlette.types import Message, Scope

from appliance.base.log import fields, logger
from appliance.server.http.callers import owner
from appliance.server.http.chunks import num_chunk_bytes

_log = logger("access")
_SHOWN_METHOD, _SHOWN_PATH = 20, 200


class AccessLine:
    """Follows one answer from its request to its last byte. The log escapes what could forge a line."""

    __slots__ = ("_began", "_method", "_num_bytes", "_path", "_scope", "_status")

    def __init__(self, scope: Scope, path: str) -> None:
        self._scope = scope
        self._method = scope["method"][:_SHOWN_METHOD]
        self._path = path[:_SHOWN_PATH]
        self._began = time.monotonic()
        self._status = 0
        self._num_bytes = 0

    def follow(self, message: Message) -> None:
        """Takes what was sent; the last part writes the line."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body":
            self._num_bytes += len(message.get("body", b""))
            if not message.get("more_body", False):
                self._write()

    def _write(self) -> None:
        values = fields(
            method=self._method,
            path=self._path,
            status=self._status,
            ms=round((time.monotonic() - self._began) * 1000, 1),
            bytes=self._num_bytes + num_chunk_bytes(self._scope),
            key=owner() or "-",
        )
        _log.info("answered", extra=values)
