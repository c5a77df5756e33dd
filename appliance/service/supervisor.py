"""Keeps one engine running: starts it, watches it, fails what was open when it ends, starts it again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.base.environ import snapshot
from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.catalog.visible_devices import visible_devices
from appliance.engine.adapter_messages import AdaptersServed
from appliance.engine.messages import (
    BootPhase,
    EngineEvent,
    Fatal,
    Heartbeat,
    Hello,
    LiveSettings,
    Ready,
    UtilityRequest,
)
from appliance.plan.types import EnginePlan
from appliance.service.client import EngineClient
from appliance.service.engine_metrics import EngineMetrics
from appliance.service.engine_process import EngineChild, describe_exit
from appliance.service.engine_spawn import SpawnedEngine, engine_command, spawn_engine
from appliance.service.engine_thread import EngineThread
from appliance.service.errors import GroupOverError
from appliance.service.health import EngineState, Health
from appliance.service.intake import DRAINING, OPEN, Intake, failed
from appliance.service.life_signs import LifeSigns
from appliance.service.link import SocketLink
from appliance.service.restart import RestartRule
from appliance.service.rolling import RollRules

if TYPE_CHECKING:
    from appliance.service.step_group import StepGroup

_log = logger("service")
_LOOK_EVERY_S = 0.25  # at the heartbeat
_FIRST_SIGN_S = 60.0  # from the start of the process: an interpreter on a busy machine takes its time
_KEPT_PLANS = 2  # those who read the one before may go back to it
_END_ALONE_S = 1.0  # in which an engine ends by itself whose group is over
_END_WAIT_S = 5.0  # for the process, after it was asked to end

Listener = Callable[[EngineEvent | Health], None]


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """plan: the EnginePlan as JSON. sockets: a private folder with a short path."""

    plan: Path
    sockets: Path


class Supervisor:
    """`listener` hears every boot phase and every change of health, in order. replica: the number of the engine among
    those with this plan. group: of those with which it runs its steps. should_pause: whether an engine that is ready is
    to be paused at once; by default, if the one before it was."""

    def __init__(
        self,
        plan: EnginePlan,
        paths: EnginePaths,
        client: EngineClient,
        *,
        metrics: EngineMetrics | None = None,
        listener: Listener = lambda event: None,
        command: Sequence[str] = (),
        first: SpawnedEngine | None = None,
        replica: int = 0,
        group: "StepGroup | None" = None,
        should_pause: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.health = Health()
        client.introduces_vocabulary = plan.serving.structured.at_start
        self._paths = paths
        self._client = client
        self._metrics = metrics
        self._listener = listener
        self._command = tuple(command) or engine_command()
        self._first = first  # an engine that was started before us
        self._replica, self._group = replica, group
        self._environment = _devices_of(plan, replica)
        self._should_pause = should_pause or (lambda: self.health.is_paused)
        self._clock = clock
        self._heartbeat_timeout_s = plan.restart.heartbeat_timeout_s
        self._rule = RestartRule(plan.restart)
        self._settings: LiveSettings | None = None  # where they are not those of the plan that the engine reads
        self._is_inside = plan.serving.has_engine_inside
        self._child: EngineChild | EngineThread | None = None
        self._link: SocketLink | None = None
        self._endpoint = ""
        self._task: asyncio.Task[None] | None = None
        self._signs = LifeSigns(clock())
        self._has_spoken = self._has_loaded = False  # this engine, yet
        self._failure: str | None = None  # known before the process ended
        self._is_lasting = False  # a new start would fail like this one
        self._stopping = False
        self._num_starts = 0
        self._num_plans = 0
        self._written: list[Path] = []  # plans with other adapters than the first, the newest last
        self._settled = asyncio.Event()  # ready, or given up

    @property
    def plan_path(self) -> Path:
        """The plan with which the engine would start again."""
        return self._paths.plan

    @property
    def endpoint(self) -> str:
        """The address of the engine's socket, which several clients may use; empty before the first start."""
        return self._endpoint

    @property
    def endpoints(self) -> Sequence[str]:
        """The address of the engine's socket alone."""
        return (self._endpoint,)

    def start(self) -> None:
        """Begins in the background; follow `health`."""
        self._task = asyncio.create_task(self._keep_running(), name="supervisor")

    def use_plan(self, plan: EnginePlan) -> None:
        """Other limits, another rule of restarts and another patience; what has failed so far is forgotten."""
        self._settings = LiveSettings.of(plan)
        if self._link is not None:
            self._link.send(self._settings)
        self._heartbeat_timeout_s = plan.restart.heartbeat_timeout_s
        self._rule = RestartRule(plan.restart)

    async def change_adapters(self, plan: EnginePlan) -> None:
        """Makes the engine serve the adapters of this plan, and start with this plan again where it must.

        Raises ApplianceError with the reason; then those before are served.
        """
        assert plan.adapters is not None, "there are places for adapters"
        path = self._write_plan(plan)
        try:
            await self._client.change_adapters(plan.adapters.served)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._start_by(path)

    def start_with(self, plan: EnginePlan) -> None:
        """The next engine starts with this plan, which differs in its adapters. Raises ApplianceError."""
        self._start_by(self._write_plan(plan))

    def _write_plan(self, plan: EnginePlan) -> Path:
        self._num_plans += 1
        path = self._paths.sockets / f"plan-{self._replica}-{self._num_plans}.json"
        try:
            path.write_bytes(msgspec.json.encode(plan))
        except OSError as error:  # a start with the older plan would serve other adapters than were asked for
            raise ApplianceError(
                f"the plan for a new start of the engine cannot be written: {error.strerror}"
            ) from error
        return path

    def _start_by(self, path: Path) -> None:
        self._paths = EnginePaths(path, self._paths.sockets)
        self._written.append(path)
        while len(self._written) > _KEPT_PLANS:
            self._written.pop(0).unlink(missing_ok=True)

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None:
        """Raises ApplianceError: an engine alone cannot be replaced while it serves."""
        raise ApplianceError("the plan is for another engine, which needs a new server")

    async def settled(self) -> Health:
        """Waits until the engine is ready or given up for the first time."""
        await self._settled.wait()
        return self.health

    def give_up(self, reason: str) -> None:
        """Takes no requests any more for a reason that a new start would not mend; the engine stays until `stop`."""
        self._change(EngineState.FAILED, reason)

    def drain(self, intake: Intake = DRAINING) -> None:
        """No new requests from now on, for the reason of `intake`; open ones go on."""
        self._client.intake = intake
        if self._link is not None and self.health.is_paused:  # nobody waits for the end of the pause
            self._link.send(UtilityRequest(call_id="drain", method="drain"))
        self._change(EngineState.DRAINING, intake.reason)

    async def stop(self) -> None:
        """Ends the engine. What is still open fails."""
        self._stopping = True
        self._client.intake = DRAINING
        is_serving = self._has_loaded and self.health.state in (EngineState.READY, EngineState.DRAINING)
        if self._link is not None and is_serving:
            self._link.send(UtilityRequest(call_id="stop", method="shutdown"))
        elif self._child is not None:
            self._child.kill()  # it still loads, and would not read the message
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), _END_WAIT_S)
            if not self._task.done():
                if self._child is not None:
                    self._child.kill()
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
        self._change(EngineState.STOPPED, "the server has stopped")

    async def _keep_running(self) -> None:
        while not self._stopping:
            reason = await self._run_once()
            if self._stopping:
                return
            if self._is_lasting:
                self._give_up(f"{reason}; it is not started again, as it would fail in the same way")
                return
            delay = self._rule.after_failure(self._clock())
            if delay is None:
                self._give_up(f"{reason}; it is not started again: {self._rule.why_given_up()}")
                return
            self._change(EngineState.RESTARTING, f"{reason}; it is being started again")
            if self._metrics:
                self._metrics.restarted()
            self.health.num_restarts += 1
            await asyncio.sleep(delay)

    def _give_up(self, reason: str) -> None:
        self._change(EngineState.FAILED, reason)
        if self._group is not None:
            self._group.give_up(self._replica, reason)

    def lose_others(self, reason: str) -> None:
        """Those with which the engine runs its steps are gone: it ends by itself, or is ended after a moment."""
        child = self._child
        if child is None or self._stopping:
            return
        self._close_to_requests(reason)
        self._client.fail_all(reason)

        def end() -> None:
            if self._child is child and self._failure is None:
                self._hung(child, reason)

        asyncio.get_running_loop().call_later(_END_ALONE_S, end)

    async def _run_once(self) -> str:
        """One life of the engine; returns why it ended."""
        self._num_starts += 1
        self._failure, self._is_lasting = None, False
        self._signs = LifeSigns(self._clock())
        self._has_spoken = self._has_loaded = False
        try:
            child = self._child = self._started()
        except OSError as error:
            return self._ended(f"the engine cannot be started: {error.strerror}")
        except GroupOverError as error:
            self._is_lasting = True
            return str(error)
        self._endpoint = child.endpoint
        self._link = SocketLink(child.endpoint, self._on_event)
        self._client.attach(self._link)
        self._link.send(self._settings or Hello())
        watch = asyncio.create_task(self._watch_heartbeat(child), name="heartbeat")
        try:
            code = await child.wait()
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
        finally:
            watch.cancel()
            self._disconnect(child.socket)
            child.release()
        how = describe_exit(code) if isinstance(child, EngineChild) else "the engine has ended"
        return self._ended(self._failure or how)

    def _ended(self, reason: str) -> str:
        """Tells those who wait for the engine why it is gone; returns the reason."""
        if self._group is not None:
            self._group.left(self._replica, reason)
        self._client.fail_all(reason)
        return reason

    def _started(self) -> EngineChild | EngineThread:
        if self._first is not None:
            first, self._first = self._first, None
            return EngineChild(first)
        socket = self._paths.sockets / f"engine-{self._replica}-{self._num_starts}"
        if self._is_inside:
            return EngineThread(self._paths.plan, socket, self._replica)
        spawned = spawn_engine(
            self._command,
            self._paths.plan,
            socket,
            replica=self._replica,
            lockstep=() if self._group is None else self._group.join(self._replica),
            environment=self._environment,
        )
        return EngineChild(spawned)

    def _disconnect(self, socket: Path) -> None:
        if self._client.intake.is_open:
            self._client.intake = failed("the engine is gone")
        self._client.attach(None)
        if self._link is not None:
            self._link.close()
        self._child = self._link = None
        socket.unlink(missing_ok=True)

    async def _watch_heartbeat(self, child: EngineChild | EngineThread) -> None:
        """Ends a process that shows no life. Loading weights beats as well, so a slow start is not a hang."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            silence = self._signs.silence(self._clock())
            allowed = self._heartbeat_timeout_s if self._has_spoken else max(_FIRST_SIGN_S, self._heartbeat_timeout_s)
            if silence > allowed and self._failure is None:
                self._hung(child, f"the engine has shown no life for {silence:.1f} s")

    def _hung(self, child: EngineChild | EngineThread, reason: str) -> None:
        self._failure = reason
        self._close_to_requests(reason)
        self._client.fail_all(reason)
        child.kill()

    def _on_event(self, event: EngineEvent) -> None:
        self._has_spoken = True
        now = self._clock()
        match event:
            case Heartbeat():
                self._on_heartbeat(event, self._signs.stuck(now, event.step_seconds))
            case BootPhase():
                self.health.phases[event.name] = event
                self._listener(event)
            case Ready():
                self._on_ready(event)
            case Fatal():
                self._failure, self._is_lasting = event.error, event.is_lasting
                self._close_to_requests(event.error)
                self._client.fail_all(event.error)
            case AdaptersServed():
                self._client.on_event(event)
                self._listener(event)
            case _:
                self._client.on_event(event)
        self._signs.heard(now)

    def _on_heartbeat(self, beat: Heartbeat, stuck: float) -> None:
        """stuck: seconds of the running step."""
        self.health.step, self.health.step_seconds = beat.step, beat.step_seconds
        self.health.is_paused = beat.is_paused if self._has_loaded else self.health.is_paused
        if stuck > self._heartbeat_timeout_s and self._child is not None and self._failure is None:
            self._hung(self._child, f"the engine hangs in step {beat.step} for {stuck:.1f} s")

    def _on_ready(self, event: Ready) -> None:
        if not self._has_loaded and self._should_pause() and self._link is not None:
            self._link.send(UtilityRequest(call_id="pause", method="pause"))  # before it gets requests
        self._has_loaded = True
        if self.health.is_ready or self.health.state is EngineState.DRAINING:
            return
        self._client.intake = OPEN
        self._change(EngineState.READY, "")
        self._listener(event)

    def _close_to_requests(self, reason: str) -> None:
        self._client.intake = failed(reason)
        if not self._stopping and self.health.state is not EngineState.DRAINING:
            self._change(EngineState.RESTARTING, reason)

    def _change(self, state: EngineState, reason: str) -> None:
        self.health.state, self.health.reason = state, reason
        if state is not EngineState.READY and self._client.intake.is_open:
            self._client.intake = failed(reason)
        if self._metrics:
            self._metrics.set_ready(self.health.is_ready)
        if state in (EngineState.READY, EngineState.FAILED):
            self._settled.set()
        _log.info("engine state", extra=fields(state=state.value, reason=reason))
        self._listener(self.health)


def _devices_of(plan: EnginePlan, replica: int) -> dict[str, str]:
    """Returns the variables that show the replica's engine its own accelerators."""
    parallel = plan.parallel
    if parallel.replicas == 1:
        return {}
    ranks = parallel.tensor * parallel.pipeline
    return visible_devices(plan.device, (replica - parallel.first_replica) * ranks, ranks, snapshot())
