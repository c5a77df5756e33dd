"""What happens to a server, as JSON lines that another process can follow while it starts."""

import time
from pathlib import Path
from typing import Any

import msgspec

STATUS_FILE = "status.jsonl"


class StatusFile:
    """Appends events: {"time": seconds since the epoch, "event": name, ...}. One write a line."""

    def __init__(self, path: Path) -> None:
        """Starts the file anew."""
        self._file = path.open("wb", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, event: str, **values: Any) -> None:
        self._file.write(self._encoder.encode({"time": round(time.time(), 3), "event": event, **values}) + b"\n")

    def close(self) -> None:
        self._file.close()
