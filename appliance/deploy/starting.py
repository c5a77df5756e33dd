"""Starting the server of a generation and waiting until it is ready."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from appliance import __version__
from appliance.base.errors import ApplyError
from appliance.deploy.follow import EventReader, log_tail
from appliance.deploy.launch import Command, launch, reap, server_command
from appliance.deploy.listeners import require_free
from appliance.deploy.phases import PhaseClock
from appliance.deploy.probe import ask_ready, planned_url
from appliance.deploy.process import ProcessId, is_running, terminate
from appliance.deploy.start_events import STATUS_FILE, StartProgress
from appliance.deploy.state import CurrentState, Generation
from appliance.plan.types import EnginePlan

POLL_S = 0.02
END_MARGIN_S = 5.0  # over the plan's own limit for draining


class StartReporter(Protocol):
    """Hears what happens while it happens."""

    def phase(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def warning(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One server that is to run.

    listener: the socket it takes over; it then accepts only when it is ready. is_gated: it has to keep the targets of
    its plan first, where that has a gate.
    """

    generation: Generation
    plan: EnginePlan
    spec_file: str
    listener: socket.socket | None = None
    is_gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    reporter: StartReporter
    phases: PhaseClock
    timeout_s: float
    command: Command = server_command
    clock: Callable[[], float] = time.monotonic

    def launch(self, start: ServerStart, record: Callable[[CurrentState], None]) -> CurrentState:
        """`record` writes the new process down before it begins. Raises ApplyError.

        An address that it has to bind itself is tried first: the weights would be loaded for nothing.
        """
        self.begin("spawn")
        if start.listener is None:
            require_free(start.plan.serving.listen)
        (start.generation.folder / STATUS_FILE).unlink(missing_ok=True)
        found: list[CurrentState] = []

        def described(process: ProcessId) -> None:
            found.append(describe(start.plan, start.generation, process, start.spec_file))
            record(found[0])

        gate = ["--gate"] if start.is_gated and start.plan.serving.gate is not None else []
        launch(start.generation, [*self.command(start.generation), *gate], described, start.listener)
        return found[0]

    def wait(self, current: CurrentState, home: Generation) -> CurrentState:
        """Until the server is ready; its record with the URL it really has.

        Whatever goes wrong, Ctrl-C as well, the server has ended then.
        """
        try:
            url = self._wait(current, home)
        except BaseException:
            terminate(current.process, END_MARGIN_S)
            reap(current.process)
            raise
        return current if url in (None, current.url) else msgspec.structs.replace(current, url=url)

    def begin(self, phase: str, at: float | None = None) -> None:
        self.phases.begin(phase, at)
        self.reporter.phase(phase)

    def _wait(self, current: CurrentState, home: Generation) -> str | None:
        reader = EventReader(home.folder / STATUS_FILE)
        start = StartProgress()
        deadline = self.clock() + self.timeout_s
        while True:
            is_alive = is_running(current.process)  # before the events, so that none of a dead server is missed
            for event in reader.read():
                if (phase := start.take(event)) is not None:
                    self.begin(phase, event.time)
                self.reporter.progress(start.done, start.total)
            if start.failure is not None or not is_alive:
                raise ApplyError(_why_ended(start.failure, home), hint=_logs_hint(current))
            if start.is_ready and ask_ready(start.url or current.url).is_ready:  # it may have been ready long ago
                return start.url
            if self.clock() > deadline:
                message = f"the server was not ready after {self.timeout_s:g} s (in phase {self.phases.name})"
                raise ApplyError(message, hint="--timeout gives it longer")
            time.sleep(POLL_S)


def describe(plan: EnginePlan, generation: Generation, process: ProcessId, spec_file: str) -> CurrentState:
    """What is written down of a server that is about to start."""
    return CurrentState(
        name=plan.name,
        generation=generation.number,
        process=process,
        started_at=time.time(),
        url=planned_url(plan.serving.listen),
        served_name=plan.model.served_names[0],
        needs_key=plan.serving.auth.has_keys,
        engine_sha256=plan.engine_sha256,
        serving_sha256=plan.serving_sha256,
        adapters_sha256=plan.adapters_sha256,
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
