"""What happens to a server, as JSON lines that another process can follow.

Every line has "time" (seconds since the epoch) and "event":
    process    pid                                      first, from the server itself
    listening  host, port, url                          the socket is bound; /livez answers soon
    phase      name, seconds, done, total, ended        of the engine's start; total 0 is unknown
    boot       seconds, memory_bytes, num_blocks        what the engine measured (a BootReport), each time it is up
    state      state, reason, ready                     whenever the engine's state changes (see EngineState)
    ready      url, seconds                             the first time that requests are taken, after the start
    answer     id, ok, reason                           to a command from outside (see service.control)
    failed     reason                                   the server ends, or will not be ready again
    stopped                                             last, after an orderly end
"""

import time
from pathlib import Path
from typing import Any

import msgspec

from appliance.engine.messages import BootPhase, EngineEvent, Ready
from appliance.service.health import EngineState, Health

STATUS_FILE = "status.jsonl"


class StatusFile:
    """Appends events, each with one write."""

    def __init__(self, path: Path | None) -> None:
        """Starts the file anew. None writes nothing."""
        self.folder = path.parent if path else None
        self._file = path.open("wb", buffering=0) if path else None
        self._encoder = msgspec.json.Encoder()

    def write(self, event: str, **values: Any) -> None:
        if self._file is not None:
            line = self._encoder.encode({"time": round(time.time(), 3), "event": event, **values})
            self._file.write(line + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def tell(status: StatusFile, event: EngineEvent | Health) -> None:
    """What a supervisor's listener hears."""
    if isinstance(event, BootPhase):
        status.write("phase", **msgspec.structs.asdict(event))
    elif isinstance(event, Ready):
        status.write("boot", **msgspec.msgpack.decode(event.report, type=dict[str, Any] | None) or {})
    elif isinstance(event, Health):
        status.write("state", state=event.state.value, reason=event.reason, ready=event.is_ready)
        if event.state is EngineState.FAILED:
            status.write("failed", reason=event.reason)
