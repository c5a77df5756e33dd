"""One session with a server of tools: how it begins, which tools it has, and their calls."""

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from appliance import __version__
from appliance.server.mcp.messages import PROTOCOL_VERSION, ToolServerError, Transport, version_of

T = TypeVar("T")
MAX_TOOLS: Final = 1024  # of one server
_MAX_PAGES: Final = 64
_MAX_DESCRIPTION: Final = 16_384  # characters; the model reads all of them in each turn


class ListedTool(msgspec.Struct):
    """A tool as its server describes it."""

    name: str
    description: str | None = None
    inputSchema: dict[str, Any] = {}  # noqa: N815 - the protocol's name
    annotations: dict[str, Any] | None = None

    @property
    def is_read_only(self) -> bool:
        return bool((self.annotations or {}).get("readOnlyHint"))


class _Page(msgspec.Struct):
    tools: list[ListedTool] = []
    nextCursor: str | None = None  # noqa: N815 - the protocol's name


class _Result(msgspec.Struct):
    content: list[dict[str, Any]] = []
    structuredContent: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the protocol's name
    isError: bool = False  # noqa: N815 - the protocol's name


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave, as text for the model. content: as the tool gave it. is_error: the tool says that it failed."""

    text: str
    content: list[dict[str, Any]] = field(default_factory=list)
    is_error: bool = False


async def begin(transport: Transport) -> str:
    """Greets the server; returns the version of the protocol that it speaks. Raises ToolServerError."""
    client = {"name": "appliance", "version": __version__}
    params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
    version = version_of(await transport.request("initialize", params))
    await transport.notify("notifications/initialized", {})
    return version


async def list_tools(transport: Transport) -> tuple[ListedTool, ...]:
    """Raises ToolServerError."""
    found: dict[str, ListedTool] = {}
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = _read(await transport.request("tools/list", {"cursor": cursor} if cursor else {}), _Page)
        for tool in page.tools:
            tool.description = tool.description and tool.description[:_MAX_DESCRIPTION]
            found[tool.name] = tool
        if len(found) > MAX_TOOLS:
            raise ToolServerError(f"the server lists more than {MAX_TOOLS} tools")
        cursor = page.nextCursor
        if cursor is None:
            return tuple(found.values())
    raise ToolServerError(f"the server lists its tools on more than {_MAX_PAGES} pages")


async def call_tool(transport: Transport, name: str, arguments: dict[str, Any], max_bytes: int) -> ToolResult:
    """Raises ToolServerError, also for a result of more than `max_bytes`."""
    result = _read(await transport.request("tools/call", {"name": name, "arguments": arguments}), _Result)
    text = "\n".join(map(_text_of, result.content))
    if not result.content:
        text = bytes(result.structuredContent).decode()
    if (size := len(text.encode())) > max_bytes:
        raise ToolServerError(f"the result has {size} bytes; {max_bytes} are allowed")
    return ToolResult(text, result.content if result.isError else [], result.isError)


def _text_of(block: dict[str, Any]) -> str:
    """Models here read text: of other content they are told what it is."""
    if isinstance(text := block.get("text"), str):
        return text
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(text := resource.get("text"), str):
        return text
    shown = {name: value for name, value in block.items() if name in ("type", "mimeType", "uri", "name", "description")}
    return msgspec.json.encode(shown).decode()


def _read(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ToolServerError(f"the server's answer is not of the protocol: {error}"[:300]) from error
