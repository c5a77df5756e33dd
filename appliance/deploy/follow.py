"""What a starting server writes down, read while it is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the status file. `values` holds what the event carries besides its time and name."""

    time: float
    name: str
    values: dict[str, Any]


class EventReader:
    """Gives complete lines once, in order; a line that is still being written is given later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        """Empty when nothing is new, or the file is not there yet."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_event(line) for line in whole.splitlines()]


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-num_lines:])


def _event(line: bytes) -> Event:
    values: dict[str, Any] = msgspec.json.decode(line)
    return Event(float(values.pop("time")), str(values.pop("event")), values)
