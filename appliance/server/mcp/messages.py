"""JSON-RPC 2.0, as the Model Context Protocol uses it."""

from typing import Any, Final, Protocol

import msgspec
import orjson

PROTOCOL_VERSION: Final = "2025-06-18"
METHOD_NOT_FOUND: Final = -32601


class ToolServerError(Exception):
    """A server of tools did not do what it was asked. code: of JSON-RPC, or of HTTP where `is_http`."""

    def __init__(self, message: str, code: int = -32000, *, is_http: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_http = is_http


class RpcError(msgspec.Struct):
    code: int = -32000
    message: str = ""


class RpcMessage(msgspec.Struct):
    """A request, a notification or an answer: whichever of its fields are there."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()  # empty: there is none
    error: RpcError | None = None

    @property
    def is_answer(self) -> bool:
        return self.method is None and self.id is not None and (bytes(self.result) != b"" or self.error is not None)

    @property
    def wants_reply(self) -> bool:
        """The server asks something of us."""
        return self.method is not None and self.id is not None


class _Greeting(msgspec.Struct):
    protocolVersion: str  # noqa: N815 - the protocol's name


class Transport(Protocol):
    """A connection to one server. Everything that arrives is bounded."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def last_heard(self) -> float:
        """When anything came from the server, by the monotonic clock."""

    async def request(self, method: str, params: dict[str, Any]) -> msgspec.Raw:
        """Returns the result. Raises ToolServerError."""

    async def notify(self, method: str, params: dict[str, Any]) -> None: ...

    async def close(self) -> None: ...


_DECODER = msgspec.json.Decoder(RpcMessage)


def request_bytes(number: int, method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification_bytes(method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def reply_bytes(message: RpcMessage) -> bytes:
    """The answer to what a server asks of us: that we are there. We do nothing for servers."""
    if message.method == "ping":
        return orjson.dumps({"jsonrpc": "2.0", "id": message.id, "result": {}})
    error = {"code": METHOD_NOT_FOUND, "message": "this client offers nothing"}
    return orjson.dumps({"jsonrpc": "2.0", "id": message.id, "error": error})


def read_message(data: bytes) -> RpcMessage | None:
    """Returns None for what is no message."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def message_of(data: bytes) -> RpcMessage:
    """Raises ToolServerError for what is no message."""
    message = read_message(data)
    if message is None:
        raise ToolServerError("the server's answer is no message of the protocol")
    return message


def too_long(max_bytes: int) -> ToolServerError:
    return ToolServerError(f"the server answered with more than {max_bytes} bytes")


def result_of(message: RpcMessage) -> msgspec.Raw:
    """Raises ToolServerError for an answer that is an error."""
    if message.error is not None:
        raise ToolServerError(message.error.message[:500] or "the server gave an error", message.error.code)
    return message.result


def version_of(greeting: msgspec.Raw) -> str:
    """The version of the protocol that a server speaks. Raises ToolServerError for what can be no header of HTTP."""
    try:
        version = msgspec.json.decode(greeting, type=_Greeting).protocolVersion
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ToolServerError("the server's greeting is not of the protocol") from error
    if not (version.isascii() and version.isprintable() and len(version) <= 32):
        raise ToolServerError("the server's greeting has no version of the protocol")
    return version
