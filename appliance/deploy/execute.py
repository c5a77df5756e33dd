"""Carries out what the reconciler decided, and says how long each part took."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from appliance import __version__
from appliance.base.errors import ApplyError
from appliance.deploy.follow import EventReader, log_tail
from appliance.deploy.launch import Command, launch, reap, server_command
from appliance.deploy.observe import observe
from appliance.deploy.phases import Phase, PhaseClock
from appliance.deploy.probe import ask_ready, planned_url
from appliance.deploy.process import ProcessId, is_running, terminate
from appliance.deploy.reconcile import Action, Readiness, Verb, reconcile
from appliance.deploy.start_events import STATUS_FILE, StartProgress
from appliance.deploy.state import CurrentState, DeploymentState, Generation
from appliance.plan.types import EnginePlan

_POLL_S = 0.02
_END_MARGIN_S = 5.0  # over the plan's own limit for draining


class Reporter(Protocol):
    """Hears what happens while it happens."""

    def action(self, action: Action) -> None: ...

    def phase(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    plan: EnginePlan
    spec_file: str
    spec_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    is_changed: bool
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
    clock: Callable[[], float] = time.monotonic

    def apply(self, wanted: Wanted) -> ApplyResult:
        """Returns when the planned server is ready. Raises ApplyError; then what was started has ended again."""
        seen = observe(self.state)
        actions = reconcile(seen, wanted.plan)
        current = seen.current
        for action in actions:
            self.reporter.action(action)
            match action.verb:
                case Verb.KEEP:
                    assert current is not None
                case Verb.WAIT:
                    assert current is not None
                    current = self._wait_or_end(current)
                case Verb.STOP:
                    assert current is not None
                    self._begin("stop")
                    stop(self.state, current, seen.plan)
                case Verb.START:
                    before = current if seen.readiness is Readiness.READY else None
                    current = self._start_or_return(wanted, before)
        assert current is not None
        is_changed = any(action.verb in (Verb.STOP, Verb.START) for action in actions)
        return ApplyResult(is_changed=is_changed, actions=actions, current=current, phases=self.phases.finish())

    def _start_or_return(self, wanted: Wanted, before: CurrentState | None) -> CurrentState:
        """Starts the new generation; when that fails, the one that served before is started again."""
        try:
            return self._start(self.state.new_generation(wanted.plan, wanted.spec_text), wanted.plan, wanted.spec_file)
        except ApplyError as failure:
            if before is None:
                raise
            self._begin("return")
            old = self.state.generation(before.generation)
            self._start(old, old.plan(), before.spec_file)
            told = f"{failure}\ngeneration {before.generation} serves again"
            raise ApplyError(told, hint=failure.hint) from failure

    def _start(self, generation: Generation, plan: EnginePlan, spec_file: str) -> CurrentState:
        self._begin("spawn")
        (generation.folder / STATUS_FILE).unlink(missing_ok=True)
        launch(
            generation,
            self.command(generation),
            lambda process: self.state.write_current(describe(plan, generation, process, spec_file)),
        )
        current = self.state.current()
        assert current is not None
        return self._wait_or_end(current)

    def _wait_or_end(self, current: CurrentState) -> CurrentState:
        """Whatever goes wrong while we wait, Ctrl-C as well, leaves nothing running."""
        try:
            url = self._wait(current)
        except BaseException:
            terminate(current.process, _END_MARGIN_S)
            reap(current.process)
            self.state.clear_current()
            raise
        if url is not None and url != current.url:  # the port was left to the system
            current = msgspec.structs.replace(current, url=url)
            self.state.write_current(current)
        return current

    def _wait(self, current: CurrentState) -> str | None:
        """Until the server is ready; answers its URL."""
        generation = self.state.generation(current.generation)
        reader = EventReader(generation.folder / STATUS_FILE)
        start = StartProgress()
        deadline = self.clock() + self.timeout_s
        while True:
            is_alive = is_running(current.process)  # before the events, so that none of a dead server is missed
            for event in reader.read():
                if (phase := start.take(event)) is not None:
                    self._begin(phase, event.time)
                self.reporter.progress(start.done, start.total)
            if start.failure is not None or not is_alive:
                raise ApplyError(_why_ended(start.failure, generation), hint=_logs_hint(current))
            if start.is_ready and ask_ready(start.url or current.url).is_ready:  # it may have been ready long ago
                return start.url
            if self.clock() > deadline:
                message = f"the server was not ready after {self.timeout_s:g} s (in phase {self.phases.name})"
                raise ApplyError(message, hint="--timeout gives it longer")
            time.sleep(_POLL_S)

    def _begin(self, phase: str, at: float | None = None) -> None:
        self.phases.begin(phase, at)
        self.reporter.phase(phase)


def stop(state: DeploymentState, current: CurrentState, plan: EnginePlan | None) -> bool:
    """Drains and ends the server. Whether it ended by itself within its time."""
    grace_s = (plan.serving.shutdown_timeout_s if plan is not None else 0.0) + _END_MARGIN_S
    is_clean = terminate(current.process, grace_s)
    reap(current.process)
    state.clear_current()
    return is_clean


def describe(plan: EnginePlan, generation: Generation, process: ProcessId, spec_file: str) -> CurrentState:
    """What is written down of a server that is about to start."""
    return CurrentState(
        name=plan.name,
        generation=generation.number,
        process=process,
        started_at=time.time(),
        url=planned_url(plan.serving),
        served_name=plan.model.served_names[0],
        needs_key=bool(plan.serving.key_hashes or plan.serving.front.keys_file),
        engine_sha256=plan.engine_sha256,
        serving_sha256=plan.serving_sha256,
        spec_file=spec_file,
        appliance_version=__version__,
    )


def _why_ended(failure: str | None, generation: Generation) -> str:
    if failure is not None:
        return f"the server did not start: {failure}"
    tail = log_tail(generation.log_path)
    return f"the server ended before it was ready; its last words:\n{tail}" if tail else "the server ended at once"


def _logs_hint(current: CurrentState) -> str:
    return f"appliance logs {current.name} --generation {current.generation}"
