"""Server-sent events, as servers of tools send messages by them."""

from collections.abc import Iterator
from typing import NamedTuple


class ServerEvent(NamedTuple):
    name: str
    data: bytes


class EventParser:
    """Takes a stream in parts of any size. num_waiting: bytes of the event that has begun."""

    def __init__(self) -> None:
        self._rest = self._name = b""
        self._data: list[bytes] = []

    @property
    def num_waiting(self) -> int:
        return len(self._rest) + sum(map(len, self._data))

    def feed(self, part: bytes) -> Iterator[ServerEvent]:
        """Yields the events that end in this part: of each the `data` lines, up to an empty line."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line:
                name, data = self._name, self._data
                self._name, self._data = b"", []
                if data:
                    yield ServerEvent(name.decode(errors="replace") or "message", b"\n".join(data))
