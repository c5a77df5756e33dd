"""A new server in place of the running one, on the same listening socket where the address stays.

Beside: both run until the new one is ready; then the old one finishes what it has. In place, where memory does not hold
two engines: the old one finishes and ends first, and connections wait in the socket's queue for the new one.
"""

import socket
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import msgspec

from appliance.base.errors import ApplyError
from appliance.deploy.control import retire, take_listener
from appliance.deploy.launch import reap
from appliance.deploy.process import is_running, terminate
from appliance.deploy.starting import END_MARGIN_S, POLL_S, ServerStart, Starter
from appliance.deploy.state import CurrentState, DeploymentState, Generation
from appliance.plan.serving_types import ListenPlan
from appliance.plan.types import EnginePlan


@dataclass(frozen=True, slots=True)
class Running:
    """The server that is to be replaced."""

    current: CurrentState
    plan: EnginePlan

    @property
    def grace_s(self) -> float:
        return self.plan.serving.shutdown_timeout_s + END_MARGIN_S


@dataclass(frozen=True, slots=True)
class Swapper:
    state: DeploymentState
    starter: Starter

    def beside(self, old: Running, start: ServerStart) -> CurrentState:
        """Raises ApplyError; the old server has served throughout then, and serves on."""
        with self._listener(old, start.plan) as listener:
            new = self._start_beside(old, replace(start, listener=listener))
            self.starter.begin("drain")
            self._end(old, keeps_socket=listener is not None)
        self._note(new)
        return new

    def in_place(self, old: Running, start: ServerStart) -> CurrentState:
        """Raises ApplyError; the old generation was started again then, and after Ctrl-C as well."""
        with self._listener(old, start.plan) as listener:
            self.starter.begin("drain")
            self.state.write_current(msgspec.structs.replace(old.current, leftover=(old.current.process,)))
            self._end(old, keeps_socket=listener is not None)
            try:
                return self.start(replace(start, listener=listener))
            except (Exception, KeyboardInterrupt) as failure:
                self.starter.begin("return")
                before = self.state.generation(old.current.generation)
                self.start(ServerStart(before, old.plan, old.current.spec_file, listener))
                if not isinstance(failure, ApplyError):
                    raise
                told = f"{failure}\ngeneration {before.number} serves again"
                raise ApplyError(told, hint=failure.hint) from failure

    def start(self, start: ServerStart) -> CurrentState:
        """Where nothing runs. Raises ApplyError; nothing runs then."""
        try:
            launched = self.starter.launch(start, self.state.write_current)
            current = self.starter.wait(launched, start.generation)
        except BaseException:
            self.state.clear_current()
            raise
        self._note(current)
        return current

    def _note(self, serving: CurrentState) -> None:
        """What was written down before holds nearly as well: it names the process."""
        try:
            self.state.write_current(serving)
        except ApplyError as error:
            self.starter.reporter.warning(str(error))

    def _start_beside(self, old: Running, start: ServerStart) -> CurrentState:
        """The new server is written down as left over until it is ready, the old one from then on."""

        def record(new: CurrentState) -> None:
            self.state.write_current(msgspec.structs.replace(old.current, leftover=(new.process,)))

        try:
            new = self.starter.wait(self.starter.launch(start, record), start.generation)
        except BaseException as failure:
            self.state.write_current(old.current)
            if not isinstance(failure, ApplyError):
                raise
            told = f"{failure}\ngeneration {old.current.generation} has served throughout"
            raise ApplyError(told, hint=failure.hint) from failure
        try:
            self.state.write_current(msgspec.structs.replace(new, leftover=(old.current.process,)))
        except ApplyError:
            terminate(new.process, old.grace_s)
            reap(new.process)
            raise
        return new

    def _listener(self, old: Running, wanted: EnginePlan) -> AbstractContextManager[socket.socket | None]:
        """Returns the handed-over listener; None if the address changes, or the server does not hand it over."""
        if _address(old.plan.serving.listen) != _address(wanted.serving.listen):
            return nullcontext()
        try:
            return take_listener(old.current.process, self._home(old))
        except ApplyError:
            return nullcontext()  # then the new server binds the address once it is free

    def _end(self, old: Running, *, keeps_socket: bool) -> None:
        """Lets it finish what is open, within its own limit. One that does not hear us any more is ended as well."""
        process, deadline = old.current.process, time.monotonic() + old.grace_s
        if keeps_socket:
            with suppress(ApplyError):
                retire(process, self._home(old))
            while is_running(process) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        terminate(process, max(0.0, deadline - time.monotonic()))
        reap(process)

    def _home(self, old: Running) -> Generation:
        return self.state.generation(old.current.home_generation)


def _address(listen: ListenPlan) -> tuple[object, ...]:
    """A socket may be taken over by a plan that listens at the same place in the same way."""
    return (listen.host, listen.port) if listen.uds is None else (listen.uds,)
