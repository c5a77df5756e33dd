"""The items of tools that servers have: their lists, their calls, and the requests for approval of a call."""

from typing import Any

from appliance.server.mcp.session import ListedTool
from appliance.server.responses.offers import OfferedTool, ToolList

Event = dict[str, Any]


class ListItem:
    """Which tools a server has. It is whole when it begins."""

    def __init__(self, suffix: str, place: int, listed: ToolList) -> None:
        self._id = f"mcpl_{suffix}_{place}"
        self._place = place
        self._list = listed

    def told(self) -> dict[str, Any]:
        tools = [_tool(tool) for tool in self._list.tools]
        told = {"type": "mcp_list_tools", "id": self._id, "server_label": self._list.label, "tools": tools}
        return {**told, "error": self._list.error}

    def begin(self) -> list[Event]:
        where = {"item_id": self._id, "output_index": self._place}
        outcome = "failed" if self._list.error is not None and not self._list.tools else "completed"
        return [
            {"type": "response.output_item.added", "output_index": self._place, "item": {**self.told(), "tools": []}},
            {"type": "response.mcp_list_tools.in_progress", **where},
            {"type": f"response.mcp_list_tools.{outcome}", **where},
            {"type": "response.output_item.done", "output_index": self._place, "item": self.told()},
        ]

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        return []

    def end(self, status: str) -> list[Event]:
        return []


def _tool(tool: ListedTool) -> dict[str, Any]:
    told = {"name": tool.name, "description": tool.description, "input_schema": tool.inputSchema}
    return {**told, "annotations": tool.annotations}


class ServerCallItem:
    """A call of a server's tool: first the model writes it (`end`), then it is made (`finish`)."""

    def __init__(
        self, suffix: str, place: int, index: int, offered: OfferedTool, approval_request_id: str | None = None
    ) -> None:
        self.index = index
        self.offered = offered
        self.is_ready = False  # written to its end, and not made yet
        self._id = f"mcp_{suffix}_{place}"
        self._place = place
        self._approval = approval_request_id
        self._arguments: list[str] = []
        self._output: str | None = None
        self._error: dict[str, Any] | None = None
        self._status = "in_progress"

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def told(self) -> dict[str, Any]:
        return {
            "type": "mcp_call", "id": self._id, "server_label": self.offered.label, "name": self.offered.tool.name,
            "arguments": self.arguments, "output": self._output, "error": self._error, "status": self._status,
            "approval_request_id": self._approval,
        }  # fmt: skip

    def begin(self) -> list[Event]:
        added = {"type": "response.output_item.added", "output_index": self._place, "item": self.told()}
        return [added, {"type": "response.mcp_call.in_progress", **self._where()}]

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._arguments.append(text)
        return [{"type": "response.mcp_call_arguments.delta", **self._where(), "delta": text}]

    def end(self, status: str) -> list[Event]:
        done = {"type": "response.mcp_call_arguments.done", **self._where(), "arguments": self.arguments}
        if status == "completed":
            self.is_ready, self._status = True, "calling"
            return [done]
        self._status = status
        return [done, {"type": "response.output_item.done", "output_index": self._place, "item": self.told()}]

    def finish(self, output: str | None, error: dict[str, Any] | None) -> list[Event]:
        """The call was made, or could not be: then `error` has OpenAI's form."""
        self._output, self._error, self.is_ready = output, error, False
        self._status = "completed" if error is None else "failed"
        return [
            {"type": f"response.mcp_call.{self._status}", **self._where()},
            {"type": "response.output_item.done", "output_index": self._place, "item": self.told()},
        ]

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._place}


class ApprovalItem:
    """A call that the caller is asked for before it is made. It is told when the model has written it."""

    def __init__(self, suffix: str, place: int, index: int, offered: OfferedTool) -> None:
        self.index = index
        self._id = f"mcpr_{suffix}_{place}"
        self._place = place
        self._offered = offered
        self._arguments: list[str] = []

    def told(self) -> dict[str, Any]:
        return {
            "type": "mcp_approval_request", "id": self._id, "server_label": self._offered.label,
            "name": self._offered.tool.name, "arguments": "".join(self._arguments),
        }  # fmt: skip

    def begin(self) -> list[Event]:
        return []

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._arguments.append(text)
        return []

    def end(self, status: str) -> list[Event]:
        kinds = ("response.output_item.added", "response.output_item.done")
        return [{"type": kind, "output_index": self._place, "item": self.told()} for kind in kinds]
