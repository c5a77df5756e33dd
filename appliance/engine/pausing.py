"""Pauses: no request starts between `begin` and `end`, so that a trainer can change weights or adapters meanwhile."""

from typing import Final

from appliance.engine.adapter_changes import CHECKER
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.events import Call
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.messages import ErrorKind, GenerateRequest
from appliance.engine.pause_messages import PauseMode
from appliance.engine.pulse import Pulse
from appliance.engine.refusal import RequestKey
from appliance.engine.step import RowError
from appliance.engine.weight_messages import SettleWeights, UpdateWeights

SHUT_DOWN: Final = RowError(ErrorKind.UNAVAILABLE, "the engine was paused, and shuts down")
_HOLDER = "pause"  # of the gate
_KEPT = (
    "requests are open that a pause keeps, and their tokens are those of the present weights: resume first, or have "
    "them aborted"
)


class Pausing:
    """New requests wait at the gate. What checks an adapter runs all the same, or adapters could not change."""

    def __init__(self, scheduler: Scheduler, gate: GrammarGate, pulse: Pulse) -> None:
        self.mode: PauseMode | None = None  # None: there is no pause
        self._scheduler, self._gate, self._pulse = scheduler, gate, pulse
        self._calls: list[Call] = []
        self._clears_cache = False

    @property
    def num_held(self) -> int:
        """The sequences that wait until the gate opens."""
        return self._gate.num_held

    @property
    def is_frozen(self) -> bool:
        """Requests are open that run no step."""
        return self._scheduler.holds_requests

    def begin(self, call: Call, mode: PauseMode, *, clears_cache: bool) -> list[RequestKey]:
        """Begins a pause, or gives one another mode. Returns the requests to abort; `quiet` answers the call."""
        self.mode, self._pulse.is_paused = mode, True
        self._clears_cache |= clears_cache
        self._calls.append(call)
        self._gate.shut(_HOLDER)
        self._scheduler.holds_requests = mode == "keep"
        return [*self._own(), *self._gate.keys()] if mode == "abort" else []

    def end(self) -> list[tuple[bytes, GenerateRequest]]:
        """Ends the pause. Returns the requests that have waited at the gate, to be let in now."""
        self.mode, self._clears_cache, self._pulse.is_paused = None, False, False
        self._scheduler.holds_requests = False
        return self._gate.open(_HOLDER)

    def quiet(self) -> list[Call]:
        """Returns the calls that are answered now: no request runs any more. Empties the prefix cache where that was
        asked for, once nothing uses it."""
        if self.mode is not None and self._clears_cache and not self._scheduler.has_work:
            self._scheduler.kv.reset()
            self._clears_cache = False
        if not self._calls or (self.mode == "wait" and self._own()):
            return []
        calls, self._calls = self._calls, []
        return calls

    def left_over(self) -> list[RequestKey]:
        """Returns the requests that no step would end while the pause lasts."""
        return [] if self.mode is None else [*self._gate.keys(), *(self._own() if self.is_frozen else ())]

    def refuses(self, change: UpdateWeights | SettleWeights) -> str | None:
        """Returns why weights cannot be replaced now; None if they can."""
        is_new = isinstance(change, UpdateWeights) and not change.update.abort
        return _KEPT if is_new and self.is_frozen and self._own() else None

    def _own(self) -> list[RequestKey]:
        """Returns the open requests of clients, which the scheduler has."""
        return [key for key in self._scheduler.open_requests() if key[0] != CHECKER]
