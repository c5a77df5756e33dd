"""Carries out what the reconciler decided, writes down how it went, and says how long each part took."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from appliance.base.errors import ApplyError
from appliance.deploy import control
from appliance.deploy.control import ControlRefusedError
from appliance.deploy.launch import Command, reap, server_command
from appliance.deploy.observe import observe
from appliance.deploy.phases import Phase, PhaseClock
from appliance.deploy.process import terminate
from appliance.deploy.reconcile import Action, Observation, Readiness, Verb, reconcile
from appliance.deploy.rolling import can_roll
from appliance.deploy.room import has_room
from appliance.deploy.starting import END_MARGIN_S, ServerStart, Starter, StartReporter, describe
from appliance.deploy.state import KILLED, CurrentState, DeploymentState, Generation, Result
from appliance.deploy.swap import Running, Swapper
from appliance.plan.types import EnginePlan


class Reporter(StartReporter, Protocol):
    """Hears what happens while it happens."""

    def action(self, action: Action) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """`spec_data`: the spec with every default, secrets masked."""

    plan: EnginePlan
    spec_file: str
    spec_text: str
    spec_data: Mapping[str, Any] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    rollback_of: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """`how`: kept, start, reload, rolling, beside, in place."""

    is_changed: bool
    how: str
    actions: tuple[Action, ...]
    current: CurrentState
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Changes one deployment. The caller holds its lock."""

    state: DeploymentState
    reporter: Reporter
    phases: PhaseClock
    timeout_s: float
    command: Command = server_command
    has_room: Callable[[EnginePlan], bool] = has_room
    clock: Callable[[], float] = time.monotonic

    def apply(self, wanted: DesiredState) -> ApplyResult:
        """Returns when the planned server is ready. Raises ApplyError; then what served before serves."""
        self.tidy()
        seen = observe(self.state)
        actions = reconcile(seen, wanted.plan)
        current, how = seen.current, "kept"
        if current is not None and seen.readiness is Readiness.READY:
            self._take_up(current)
        for action in actions:
            self.reporter.action(action)
            match action.verb:
                case Verb.KEEP:
                    pass
                case Verb.WAIT:
                    assert current is not None
                    current = self._wait(current)
                    self._take_up(current)
                case Verb.STOP:
                    assert current is not None
                    self._begin("stop")
                    stop(self.state, current, seen.plan)
                case Verb.START | Verb.RELOAD | Verb.SWAP:
                    current, how = self._carry_out(action, wanted, seen)
        assert current is not None
        return ApplyResult(
            is_changed=how != "kept", how=how, actions=actions, current=current, phases=self.phases.finish()
        )

    def tidy(self) -> None:
        """Ends and removes what a command that was killed had left. Raises ApplyError."""
        self._end_leftovers()
        self.state.sweep()

    def _carry_out(self, action: Action, wanted: DesiredState, seen: Observation) -> tuple[CurrentState, str]:
        """Makes a generation, and writes down what became of it."""
        generation = self.state.new_generation(
            wanted.plan, wanted.spec_text, wanted.spec_data, wanted.overrides, wanted.spec_file
        )
        how = self._how(action, wanted.plan, seen)
        before = seen.current.generation if seen.current is not None else 0
        began = self.clock()
        is_gated = how in ("beside", "in place", "rolling") and not wanted.rollback_of
        start = ServerStart(generation, wanted.plan, wanted.spec_file, is_gated=is_gated)
        reason = ""
        try:
            current = self._run(how, start, seen)
        except ApplyError as failure:
            reason = str(failure)
            raise
        except BaseException as failure:
            reason = f"interrupted ({type(failure).__name__})"
            raise
        finally:
            result = Result(
                outcome="failed" if reason else "serving", how=how, cause=action.cause, at=time.time(),
                seconds=round(self.clock() - began, 3), reason=reason, replaced=before, rollback_of=wanted.rollback_of,
            )  # fmt: skip
            self._tell(generation, result)
        return current, how

    def _take_up(self, current: CurrentState) -> None:
        """A server that is ready, whose apply was killed before it could say how that went."""
        generation = self.state.generation(current.generation)
        if generation.result() is None:
            result = Result(outcome="serving", how="taken up", cause=KILLED, at=time.time(), seconds=0.0)
            self._tell(generation, result)

    def _tell(self, generation: Generation, result: Result) -> None:
        """Where even that cannot be written, what runs counts; the next apply finds the generation without a result."""
        try:
            generation.write_result(result)
        except OSError as error:
            self.reporter.warning(f"the result of generation {generation.number} was not written: {error.strerror}")

    def _how(self, action: Action, plan: EnginePlan, seen: Observation) -> str:
        if action.verb is Verb.SWAP:
            if seen.plan is not None and can_roll(seen.plan, action.changes):
                return "rolling"
            return "beside" if self.has_room(plan) else "in place"
        return action.verb.value

    def _run(self, how: str, start: ServerStart, seen: Observation) -> CurrentState:
        if how == "start" or seen.current is None or seen.plan is None:
            return self._swapper.start(start)
        if how in ("reload", "rolling"):
            return self._reload(start, seen.current, rolls=how == "rolling")
        old = Running(seen.current, seen.plan)
        return self._swapper.beside(old, start) if how == "beside" else self._swapper.in_place(old, start)

    def _reload(self, start: ServerStart, current: CurrentState, *, rolls: bool) -> CurrentState:
        """Until the server has answered it is written down that it may follow either plan."""
        self._begin("replace engines" if rolls else "reload")
        self.state.write_current(msgspec.structs.replace(current, pending=start.generation.number))
        try:
            self._tell_server(start, current, rolls=rolls)
        except ControlRefusedError:
            self.state.write_current(msgspec.structs.replace(current, pending=0))
            raise
        described = describe(start.plan, start.generation, current.process, start.spec_file)
        new = msgspec.structs.replace(
            described, url=current.url, started_at=current.started_at, home=current.home_generation
        )
        try:
            self.state.write_current(new)
        except ApplyError as error:  # the next apply tells the server once more
            self.reporter.warning(str(error))
        return new

    def _tell_server(self, start: ServerStart, current: CurrentState, *, rolls: bool) -> None:
        home, path = self._home(current), start.generation.plan_path
        if rolls:
            within_s = self.timeout_s * start.plan.parallel.replicas
            control.roll(current.process, home, path, within_s, is_gated=start.is_gated)
        else:
            control.reload(current.process, home, path, max(control.ANSWER_S, self.timeout_s))

    def _wait(self, current: CurrentState) -> CurrentState:
        try:
            ready = self._starter.wait(current, self._home(current))
        except BaseException:
            self.state.clear_current()
            raise
        self.state.write_current(ready)
        return ready

    def _end_leftovers(self) -> None:
        """Servers of an apply that was killed before it had ended what it replaced, or what did not become ready."""
        current = self.state.current()
        if current is None or not current.leftover:
            return
        self._begin("clean up")
        for process in current.leftover:
            terminate(process, self._patience_s(current))
            reap(process)
        self.state.write_current(msgspec.structs.replace(current, leftover=()))

    def _patience_s(self, current: CurrentState) -> float:
        """What is left over may be a server that still finishes what it had."""
        try:
            plan = self.state.generation(current.generation).plan()
        except (OSError, msgspec.DecodeError):
            return END_MARGIN_S
        return plan.serving.shutdown_timeout_s + END_MARGIN_S

    def _home(self, current: CurrentState) -> Generation:
        return self.state.generation(current.home_generation)

    @property
    def _starter(self) -> Starter:
        return Starter(
            reporter=self.reporter, phases=self.phases, timeout_s=self.timeout_s, command=self.command, clock=self.clock
        )

    @property
    def _swapper(self) -> Swapper:
        return Swapper(self.state, self._starter)

    def _begin(self, phase: str) -> None:
        self._starter.begin(phase)


def stop(state: DeploymentState, current: CurrentState, plan: EnginePlan | None) -> bool:
    """Drains and ends the server. Whether it ended by itself within its time."""
    grace_s = (plan.serving.shutdown_timeout_s if plan is not None else 0.0) + END_MARGIN_S
    is_clean = True
    for process in (current.process, *current.leftover):
        is_clean = terminate(process, grace_s) and is_clean
        reap(process)
    state.clear_current()
    return is_clean
