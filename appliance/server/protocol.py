"""uvicorn's httptools protocol with bounds on headers, which it does not have itself, and errors in OpenAI's shape."""

from typing import Any, ClassVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from appliance.server.errors import ApiError


class BoundedHttpProtocol(HttpToolsProtocol):
    """Use `bounded_protocol`: uvicorn makes the instances, so the bounds are the class's."""

    max_bytes: ClassVar[int] = 1 << 16
    max_count: ClassVar[int] = 256

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0  # received while the head is not complete
        self._is_in_head = True
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.max_bytes:
            self._refuse(431, "the request line and headers are too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.max_count:
            self._refuse(431, f"there are more than {self.max_count} headers")

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_bytes:
            self._refuse(431, "the request line and headers are too large")
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        body = orjson.dumps(ApiError(status, message, code="bad_http").body())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def bounded_protocol(max_bytes: int, max_count: int) -> type[BoundedHttpProtocol]:
    return type("PlannedHttpProtocol", (BoundedHttpProtocol,), {"max_bytes": max_bytes, "max_count": max_count})
