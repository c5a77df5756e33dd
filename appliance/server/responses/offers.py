"""The tools of servers that one response may use: what the request names, of what the spec allows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from appliance.requests.errors import ApiError, invalid, not_in_this_version
from appliance.server.mcp.messages import ToolServerError
from appliance.server.mcp.servers import ToolServer, ToolServers
from appliance.server.mcp.session import ListedTool
from appliance.server.responses.fields import ResponsesFields, ResponseTool, ToolFilter

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")  # as of functions; a label may come before it
_OF_MCP: Final = (
    *("server_label", "server_description", "server_url", "allowed_tools", "require_approval", "headers"),
    *("authorization", "connector_id", "tunnel_id"),
)
_OF_FUNCTIONS: Final = ("name", "description", "parameters", "strict", "output_schema", "is_async")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the model may call."""

    server: ToolServer
    label: str
    tool: ListedTool
    needs_approval: bool

    def definition(self, name: str) -> dict[str, Any]:
        """As a function in the words of chat completions; `name`: by which the model knows it."""
        function = {"name": name, "description": self.tool.description or "", "parameters": self.tool.inputSchema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolList:
    """What a server was found to have. error: why it is not all, or nothing."""

    label: str
    tools: tuple[ListedTool, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """tools: by the name that the model knows, which is the tool's own unless several have it."""

    tools: dict[str, OfferedTool] = field(default_factory=dict)
    lists: tuple[ToolList, ...] = ()

    def find(self, label: str, name: str) -> tuple[str, OfferedTool] | None:
        """Returns a tool, and the name by which the model knows it."""
        pairs = self.tools.items()
        return next(((known, each) for known, each in pairs if (each.label, each.tool.name) == (label, name)), None)

    def names_of(self, label: str, name: str | None = None) -> list[str]:
        """Returns the names by which the model knows the tools of a server, or one of them."""
        pairs = self.tools.items()
        return [known for known, each in pairs if each.label == label and name in (None, each.tool.name)]


async def find_offers(servers: ToolServers, fields: ResponsesFields) -> Offers:
    """Asks each server that the request names. One that cannot be reached offers nothing, and its list says why.

    Raises ApiError 400 for what the request may not name.
    """
    tools = fields.tools or []
    offers, lists = Offers(), []
    taken = {tool.name for tool in tools if tool.type == "function"}
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        _check_fields(tool, where)
        if tool.type == "mcp":
            server = _server(servers, tool, where)
            lists.append(await _listed(server, tool, where))
            for each in lists[-1].tools:
                label = lists[-1].label
                known = f"{label}__{each.name}" if each.name in taken else each.name
                if known in taken:
                    message = f"two tools would have the name {known[:100]!r}"
                    raise invalid(where, message, "invalid_value")
                taken.add(known)
                asks = tool.needs_approval(each.name, is_read_only=each.is_read_only)
                offers.tools[known] = OfferedTool(server, label, each, asks)
    labels = [each.label for each in lists]
    if len(set(labels)) < len(labels):
        raise invalid("tools", "two tools have the same server_label", "invalid_value")
    return Offers(offers.tools, tuple(lists))


async def _listed(server: ToolServer, tool: ResponseTool, where: str) -> ToolList:
    label = server.plan.name
    try:
        listed = await server.tools()
    except ToolServerError as error:
        return ToolList(label, error=str(error))
    wanted = tool.allowed_tools
    chosen = ToolFilter(tool_names=wanted) if isinstance(wanted, list) else wanted or ToolFilter()
    known = {each.name for each in listed}
    for name in chosen.tool_names or []:
        if name not in known:
            message = f"the server {label} offers no tool {name[:100]!r}"
            raise invalid(f"{where}.allowed_tools", message, "invalid_value")
    kept = tuple(each for each in listed if chosen.has(each.name, is_read_only=each.is_read_only))
    usable = tuple(each for each in kept if _NAME.fullmatch(each.name))
    num_bad = len(kept) - len(usable)
    return ToolList(label, usable, f"{num_bad} tools have names that no model may be shown" if num_bad else None)


def _server(servers: ToolServers, tool: ResponseTool, where: str) -> ToolServer:
    for name in ("connector_id", "tunnel_id"):
        if getattr(tool, name) is not None:
            raise not_in_this_version(f"{where}.{name}")
    if tool.server_label is None:
        message = f"the field '{where}.server_label' is missing"
        raise invalid(f"{where}.server_label", message, "missing_required_parameter")
    server = servers.find(tool.server_label)
    if tool.server_url is not None and (server is None or server.plan.url != tool.server_url):
        message = "requests may not name addresses: decoding.tool_server lists the servers, by their server_label"
        raise invalid(f"{where}.server_url", message, "not_allowed")
    if server is None:
        there = ", ".join(servers.names) or "none"
        message = f"no tool server is named {tool.server_label[:100]!r}; this server has: {there}"
        raise invalid(f"{where}.server_label", message, "invalid_value")
    for name in ("headers", "authorization"):
        if getattr(tool, name):
            message = f"the headers of {server.plan.name} are those of decoding.tool_server"
            raise invalid(f"{where}.{name}", message, "not_allowed")
    return server


def _check_fields(tool: ResponseTool, where: str) -> None:
    """Raises ApiError 400 for a field that a tool of this type does not have."""
    others = {"function": _OF_MCP, "mcp": _OF_FUNCTIONS}.get(tool.type, ())
    if (name := next(_given(tool, others), None)) is not None:
        shown = "async" if name == "is_async" else name
        raise invalid(f"{where}.{shown}", f"a tool of type {tool.type} has no {shown}", "unknown_parameter")


def _given(tool: ResponseTool, names: tuple[str, ...]) -> Iterator[str]:
    return (name for name in names if getattr(tool, name) is not None)


def unknown_choice(label: str | None, name: str | None) -> ApiError:
    tool = f"tool {name[:100]!r}" if name else "tools"
    message = f"no {tool} of a server {str(label)[:100]!r} is among the tools of this request"
    return invalid("tool_choice", message, "invalid_value")
