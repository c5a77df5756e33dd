"""The output items of a response while they are written: each gives its events and, at any time, itself."""

from abc import ABC, abstractmethod
from typing import Any, Protocol


class OpenItem(Protocol):
    """One item. It begins and ends once; texts are written between."""

    def begin(self) -> list[dict[str, Any]]: ...

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]: ...

    def end(self, status: str) -> list[dict[str, Any]]: ...

    def told(self) -> dict[str, Any]:
        """The item as it is now."""


class _TextItem(ABC):
    """An item with one part of text."""

    prefix = ""  # of ids
    delta = ""  # of event types

    def __init__(self, suffix: str, place: int) -> None:
        self._id = f"{self.prefix}_{suffix}_{place}"
        self._place = place
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._status = "in_progress"
        self._has_part = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def part(self) -> dict[str, Any]:
        """The part as it is now."""

    @abstractmethod
    def told(self) -> dict[str, Any]:
        """As in OpenItem."""

    def begin(self) -> list[dict[str, Any]]:
        added = {"type": "response.output_item.added", "output_index": self._place, "item": self.told()}
        empty = self.part()
        self._has_part = True
        return [added, {"type": "response.content_part.added", **self._where(), "part": empty}]

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._texts.append(text)
        self._logprobs += logprobs
        return [{"type": f"response.{self.delta}.delta", **self._where(), "delta": text, **self._with(logprobs)}]

    def end(self, status: str) -> list[dict[str, Any]]:
        self._status = status
        done = {"type": f"response.{self.delta}.done", **self._where(), "text": self.text, **self._with(self._logprobs)}
        return [
            done,
            {"type": "response.content_part.done", **self._where(), "part": self.part()},
            {"type": "response.output_item.done", "output_index": self._place, "item": self.told()},
        ]

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._place, "content_index": 0}

    def _with(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {}

    def _parts(self) -> list[dict[str, Any]]:
        return [self.part()] if self._has_part else []


class MessageItem(_TextItem):
    """The answer itself."""

    prefix, delta = "msg", "output_text"

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}

    def told(self) -> dict[str, Any]:
        content = self._parts()
        return {"type": "message", "id": self._id, "status": self._status, "role": "assistant", "content": content}

    def _with(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": logprobs}


class ReasoningItem(_TextItem):
    """Earlier reasoning of the model."""

    prefix, delta = "rs", "reasoning_text"

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def told(self) -> dict[str, Any]:
        told = {"type": "reasoning", "id": self._id, "summary": [], "content": self._parts()}
        return {**told, "encrypted_content": None, "status": self._status}


class CallItem:
    """A call of a function. index: of the call in the message."""

    def __init__(self, suffix: str, place: int, index: int, call_id: str, name: str) -> None:
        self.index = index
        self._id = f"fc_{suffix}_{place}"
        self._place = place
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []
        self._status = "in_progress"

    def told(self) -> dict[str, Any]:
        return {
            "type": "function_call", "id": self._id, "call_id": self._call_id, "name": self._name,
            "arguments": "".join(self._arguments), "status": self._status,
        }  # fmt: skip

    def begin(self) -> list[dict[str, Any]]:
        return [{"type": "response.output_item.added", "output_index": self._place, "item": self.told()}]

    def write(self, text: str, logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._arguments.append(text)
        return [{"type": "response.function_call_arguments.delta", **self._where(), "delta": text}]

    def end(self, status: str) -> list[dict[str, Any]]:
        self._status = status
        arguments = "".join(self._arguments)
        kind = "response.function_call_arguments.done"
        return [
            {"type": kind, **self._where(), "name": self._name, "arguments": arguments},
            {"type": "response.output_item.done", "output_index": self._place, "item": self.told()},
        ]

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._place}
