"""What the events of a starting server mean for the command that waits for it."""

from dataclasses import dataclass, field
from typing import Any

from appliance.deploy.follow import Event
from appliance.deploy.probe import reachable
from appliance.service.status_file import STATUS_FILE

__all__ = ["STATUS_FILE", "StartProgress"]

_ENGINE_PHASES = {"kernels": "load kernels", "headers": "read headers", "weights": "load weights"}
_LAST_ENGINE_PHASE = "runner"


@dataclass(slots=True)
class StartProgress:
    """`done` of `total` within the phase; total 0 when that is not counted. `url` is known once the server listens."""

    done: int = 0
    total: int = 0
    is_ready: bool = False
    failure: str | None = None
    url: str | None = None
    _begun: set[str] = field(default_factory=set)

    def take(self, event: Event) -> str | None:
        """Notes an event; answers the phase that begins with it, if one does."""
        values = event.values
        match event.name:
            case "process":
                return "import"
            case "listening":
                self.url = reachable(str(values["url"]))
                return "connect"
            case "phase":
                return self._engine_phase(values)
            case "ready":
                self.is_ready = True
            case "failed":
                self.failure = str(values["reason"])
        return None

    def _engine_phase(self, values: dict[str, Any]) -> str | None:
        """A phase that is over before anyone looked is heard of once, as ended; it began all the same."""
        name = str(values["name"])
        begins = name not in self._begun
        self._begun.add(name)
        if not values["ended"]:
            self.done, self.total = int(values["done"]), int(values["total"])
            return _ENGINE_PHASES.get(name, name)
        self.done = self.total = 0
        if name == _LAST_ENGINE_PHASE:
            return "ready"
        return _ENGINE_PHASES.get(name, name) if begins else None
