"""The engine as a worker sees it: its own link to it, and what the keeper says of its health."""

from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.engine.messages import EngineEvent, Heartbeat, Hello
from appliance.plan.types import EnginePlan
from appliance.server.workers.messages import EngineNow
from appliance.service.client import EngineClient
from appliance.service.health import EngineState, Health
from appliance.service.intake import DRAINING, OPEN, STARTING, failed
from appliance.service.link import SocketLink
from appliance.service.rolling import RollRules

_SERVING = (EngineState.READY, EngineState.DRAINING)
_DRAINED = "the server is shutting down"


class EngineSide:
    """The keeper starts, watches and ends the engine; a worker only talks to it."""

    def __init__(self, client: EngineClient) -> None:
        self.health = Health()
        self._client = client
        self._link: SocketLink | None = None
        self._endpoint: str | None = None
        self._is_draining = False

    def now(self, engine: EngineNow) -> None:
        """Follows the engine: a new one is attached, and what was open at one that is gone fails."""
        if engine.endpoint != self._endpoint:
            self._leave(engine.reason or "the engine was started again")
            self._endpoint = engine.endpoint
            if engine.endpoint is not None:
                self._link = SocketLink(engine.endpoint, self._on_event)
                self._client.attach(self._link)
                self._link.send(Hello())
        health = self.health
        health.num_restarts = engine.num_restarts
        health.phases = {phase.name: phase for phase in engine.phases}
        if self._is_draining:
            return
        health.state, health.reason = engine.state, engine.reason
        is_ready = engine.state is EngineState.READY
        if is_ready:
            self._client.intake = OPEN
        else:
            self._client.intake = failed(engine.reason) if engine.reason else STARTING

    def use_plan(self, plan: EnginePlan) -> None:
        """Restarts and patience are the keeper's."""

    async def change_adapters(self, plan: EnginePlan) -> None:
        """The keeper tells the engine, before it tells the workers."""

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None:
        """Raises ApplianceError: engines are the keeper's."""
        raise ApplianceError("the plan is for another engine, which needs a new server")

    def drain(self) -> None:
        """No new requests from now on; open ones go on."""
        self._is_draining = True
        self._client.intake = DRAINING
        self.health.state, self.health.reason = EngineState.DRAINING, _DRAINED

    def close(self) -> None:
        self._leave(_DRAINED)

    def _leave(self, reason: str) -> None:
        if self._link is None:
            return
        self._client.intake = failed(reason)
        self._client.fail_all(reason)
        self._link.close()
        self._link = None

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, Heartbeat):
            self.health.step, self.health.step_seconds = event.step, event.step_seconds
            self.health.is_paused = event.is_paused
        else:
            self._client.on_event(event)


def endpoint_for(health: Health, endpoint: str) -> str | None:
    """Returns where workers reach the engine, while it takes requests or ends what it has; else None."""
    return endpoint if health.state in _SERVING else None
