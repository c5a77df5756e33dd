"""The deep check: whether one token still comes through the scheduler, the model and the way back."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from appliance.engine.messages import ErrorKind
from appliance.service.errors import RequestFailedError
from appliance.service.health import EngineHealth
from appliance.service.metrics import ServiceMetrics
from appliance.service.service_client import ServiceClient

PATIENCE_S = 5.0  # for the token
KEPT_S = 1.0  # a result answers everybody who asks within this time

DeepState = Literal["ok", "busy", "stuck"]
_PAUSED: Final[tuple[DeepState, str]] = ("busy", "the engine is paused: a token comes after POST /resume")


@dataclass(frozen=True, slots=True)
class DeepResult:
    """ok: the token came. busy: it did not, and the engine works, or is paused. stuck: it did not, and nothing explains
    why."""

    state: DeepState
    seconds: float
    reason: str = ""


class DeepCheck:
    """Requests at most one token at a time, and one a second, for all callers together.

    An engine that steps, or is in a step that the heartbeat still allows, is busy. A step that lasts longer than the
    heartbeat allows is the supervisor's to see: it turns readiness red itself.
    """

    def __init__(
        self,
        client: ServiceClient,
        health: EngineHealth,
        metrics: ServiceMetrics,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._health = health
        self._metrics = metrics
        self._patience_s = patience_s
        self._clock = clock
        self._task: asyncio.Task[DeepResult] | None = None
        self._ended_at = 0.0

    async def result(self) -> DeepResult:
        """Returns the result of the check that runs, of one within the last second, or of a new one."""
        if self._task is None or (self._task.done() and self._clock() - self._ended_at > KEPT_S):
            self._task = asyncio.create_task(self._check(), name="deep-check")
        return await asyncio.shield(self._task)

    async def _check(self) -> DeepResult:
        began, step = self._clock(), self._health.step
        state, reason = _PAUSED if self._health.is_paused else await self._ask()
        if state == "stuck" and self._health.is_paused:
            state, reason = _PAUSED
        elif state == "stuck" and self._works_since(step):
            state, reason = "busy", f"no token within {self._patience_s:g} s, and the engine works"
        self._ended_at = self._clock()
        self._metrics.deep_checked(state)
        return DeepResult(state, self._ended_at - began, reason)

    async def _ask(self) -> tuple[DeepState, str]:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._client.probe()
        except TimeoutError:
            return "stuck", f"no token within {self._patience_s:g} s, and the engine does nothing"
        except RequestFailedError as failure:
            if failure.kind is ErrorKind.OVERLOADED:
                return "busy", str(failure)
            return "stuck", str(failure)
        return "ok", ""

    def _works_since(self, step: int) -> bool:
        health = self._health
        return health.is_ready and (health.step != step or health.step_seconds > 0)
