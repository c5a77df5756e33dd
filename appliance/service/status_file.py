"""What happens to a server, as JSON lines that another process can follow.

Every line has "time" (seconds since the epoch) and "event":
    process    pid                                      first, from the server itself
    listening  host, port, url                          the socket is bound; /livez answers soon
    phase      name, seconds, done, total, ended        of the engine's start; total 0 is unknown
    boot       seconds, memory_bytes, num_blocks        what the engine measured (a BootReport), each time it is up
    state      state, reason, ready                     whenever the engine's state changes (see EngineState)
    ready      url, seconds                             the first time that requests are taken, after the start
    adapters   adapters                                 those that are served now, as reports of the engine
    answer     id, ok, reason                           to a command from outside (see service.control)
    failed     reason                                   the server ends, or will not be ready again
    stopped                                             last, after an orderly end
With several replicas, phase, boot, state and adapters are of the one whose number is `engine`.
"""

import contextlib
import io
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.base.log import fields, logger
from appliance.engine.adapter_messages import AdaptersServed
from appliance.engine.messages import BootPhase, EngineEvent, Ready
from appliance.service.health import EngineHealth, EngineState, Health

STATUS_FILE = "status.jsonl"
MAX_WAITING_BYTES: Final = 1 << 18  # of lines that a full disk did not take
_log = logger("service")


class StatusFile:
    """Appends events. What a full disk does not take waits in memory and is written first when it takes more: a server
    goes on serving, and no line is torn. What comes when MAX_WAITING_BYTES wait already is lost."""

    def __init__(self, path: Path | None) -> None:
        """Starts the file anew. None writes nothing. Raises OSError when it cannot be opened."""
        self.folder = path.parent if path else None
        self._file = path.open("wb", buffering=0) if path else None
        self._encoder = msgspec.json.Encoder()
        self._waiting = b""

    def write(self, event: str, **values: Any) -> None:
        if self._file is None:
            return
        line = self._encoder.encode({"time": round(time.time(), 3), "event": event, **values}) + b"\n"
        was_waiting = bool(self._waiting)
        if len(self._waiting) + len(line) > MAX_WAITING_BYTES:
            return
        self._waiting += line
        try:
            self._flush(self._file)
        except OSError as error:
            if not was_waiting:
                _log.error("the status file takes no more", extra=fields(reason=str(error)))

    def _flush(self, file: io.FileIO) -> None:
        while self._waiting:
            self._waiting = self._waiting[file.write(self._waiting) :]

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._flush(self._file)
            self._file.close()


def tell(status: StatusFile, event: EngineEvent | Health, engine: int | None = None) -> None:
    """Writes what the listener of a supervisor gets. engine: the number of the replica, where there are several."""
    of = {} if engine is None else {"engine": engine}
    if isinstance(event, BootPhase):
        status.write("phase", **of, **msgspec.structs.asdict(event))
    elif isinstance(event, Ready):
        status.write("boot", **of, **msgspec.msgpack.decode(event.report, type=dict[str, Any] | None) or {})
    elif isinstance(event, AdaptersServed):
        status.write("adapters", **of, adapters=msgspec.to_builtins(event.adapters))
    elif isinstance(event, Health):
        status.write("state", **of, state=event.state.value, reason=event.reason, ready=event.is_ready)


def tell_given_up(status: StatusFile, health: EngineHealth) -> None:
    """Writes that no engine will be there again by itself, if it is so."""
    if health.state is EngineState.FAILED:
        status.write("failed", reason=health.reason)
