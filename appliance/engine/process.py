"""The engine process: `python -m appliance.engine --plan plan.json --socket ipc:///path`.

Threads: the main one boots and then runs the loop; the front owns the socket. Exit codes: 0 after a drain or a
shutdown, 1 when the engine died, 2 when the plan cannot be read or the model cannot be loaded.
"""

import argparse
import faulthandler
import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.log import configure, fields, logger
from appliance.base.plugins import PluginError
from appliance.base.sockets import remove_orphan
from appliance.checkpoint.errors import SealedError
from appliance.engine.backend import PlanMismatchError
from appliance.engine.boot import boot, process_age_s
from appliance.engine.front import ClientGone, DrainAndStop, Front, Intake, ModelLost, StepWanted
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import ErrorKind, Fatal, Ready
from appliance.engine.pulse import Pulse
from appliance.engine.replica import as_replica
from appliance.engine.rounds import watch
from appliance.kernels.errors import ExecutableError, KernelSetError
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import SharedMemory
from appliance.plan.types import EnginePlan
from appliance.program.shard_layout import Shard

_log = logger("engine")

EXIT_DEAD = 1
EXIT_NOT_STARTED = 2
# A library to build, a plan to make again, a plug-in to mend, another key: no new start heals them.
LASTING = (KernelSetError, PlanMismatchError, PluginError, SealedError)
HEARTBEAT_S = 0.5
SWITCH_INTERVAL_S = 0.0005  # how long the front may hold the GIL while the loop waits for it


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    faulthandler.enable()
    try:
        plan = msgspec.json.decode(Path(options.plan).read_bytes(), type=EnginePlan)
    except (OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"error: the plan {options.plan} cannot be read: {error}\n")
        return EXIT_NOT_STARTED
    try:
        configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)
    except ApplianceError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_NOT_STARTED
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    lockstep = None
    if options.lockstep is not None:
        memory, *wakes = map(int, options.lockstep.split(":"))
        place, timeout_s = options.replica - plan.parallel.first_replica, plan.parallel.distributed_timeout_s
        leads = Shard(0, plan.parallel.tensor)
        lockstep = Lockstep(SharedMemory(memory), place, len(wakes), timeout_s, wakes, shard=leads)
    plan = as_replica(plan, options.replica)
    engine = ServedEngine(plan, options.socket, options.parent_fd, options.heartbeat, lockstep)
    signal.signal(signal.SIGTERM, engine.on_terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides when we end
    return engine.run()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="appliance.engine", description="Runs one planned engine behind a socket.")
    parser.add_argument("--plan", required=True, help="an EnginePlan as JSON")
    parser.add_argument("--socket", required=True, help="a ZeroMQ endpoint to bind, such as ipc:///run/engine.sock")
    parser.add_argument("--parent-fd", type=int, help="read end of a pipe; the engine ends at once when it closes")
    parser.add_argument("--replica", type=int, default=0, metavar="NUMBER", help="of several engines with this plan")
    parser.add_argument(
        "--lockstep", metavar="FD:FD:...", help="what replicas share that run their steps together: memory, and events"
    )
    parser.add_argument("--heartbeat", type=float, default=HEARTBEAT_S, metavar="SECONDS", help="between heartbeats")
    return parser.parse_args(arguments)


def _why(error: Exception) -> str:
    """Returns the reason of an end in one sentence."""
    if isinstance(error, ApplianceError):
        return f"{error}{f'; {error.hint}' if error.hint else ''}"
    return f"{type(error).__name__}: {error}"


def _end_orphaned(endpoint: str) -> None:
    """Removes the socket and exits at once: the parent process, which would clean up, is gone."""
    remove_orphan(endpoint)
    os._exit(0)


class ServedEngine:
    """Boots an engine, serves it behind a socket, and ends it; in the main thread of a process or another."""

    def __init__(
        self,
        plan: EnginePlan,
        endpoint: str,
        parent_fd: int | None,
        heartbeat_s: float,
        lockstep: Lockstep | None = None,
    ) -> None:
        self._plan, self._lockstep = plan, lockstep
        self._intake: queue.SimpleQueue[Intake] = queue.SimpleQueue()
        self._pulse = Pulse()
        self._booting = True
        self._deadline: float | None = None  # of a drain
        self._front = Front(
            endpoint,
            self._intake,
            lambda: self._pulse,
            heartbeat_s=heartbeat_s,
            parent_fd=parent_fd,
            orphaned=lambda: _end_orphaned(endpoint),
        )

    def run(self) -> int:
        """Returns the exit code when the engine has ended. Raises nothing but what ends a process."""
        self._front.start()
        try:
            return self._run()
        finally:
            self._front.stop()

    def _run(self) -> int:
        try:
            loop = boot(self._plan, self._front.broadcast, interpreter_s=process_age_s(), lockstep=self._lockstep)
        except (ApplianceError, ValueError, OSError, MemoryError) as error:
            reason = _why(error) if isinstance(error, ApplianceError) else str(error)
            is_lasting = isinstance(error, LASTING)
            return self._die(f"the engine could not start: {reason}", EXIT_NOT_STARTED, is_lasting=is_lasting)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the log gets the traceback, the clients a reason
            _log.exception("the engine could not start")
            return self._die(f"the engine could not start: {type(error).__name__}: {error}", EXIT_DEAD)
        self._booting = False
        loop.watch(self._lose_model)
        if self._lockstep is not None:
            watch(self._lockstep, lambda: self._intake.put((b"", StepWanted())), self._lose_model)
        self._pulse = loop.pulse
        self._front.broadcast(loop.adapters_served())
        self._front.broadcast(Ready(loop.boot_report))
        try:
            self._serve(loop)
        except Exception as error:  # noqa: BLE001 - after any exception, every open request must get an error
            _log.exception("the engine died")
            reason = f"the engine died in step {loop.pulse.step}: {_why(error)}"
            self._fail_all(loop, reason, ErrorKind.INTERNAL)
            return self._die(reason, EXIT_DEAD)
        self._fail_all(loop, "the engine was shut down", ErrorKind.UNAVAILABLE)
        loop.close()
        return 0

    def _lose_model(self, reason: str) -> None:
        self._intake.put((b"", ModelLost(reason)))

    def _serve(self, loop: EngineLoop) -> None:
        while not loop.stopped:
            self._take_in(loop)
            loop.pulse.turn = time.monotonic()  # it may hang before and after its step as well
            self._front.emit(loop.step())
            self._front.emit(loop.drained())
            loop.pulse.turn = 0.0
            if self._deadline is not None and (not loop.has_work or time.monotonic() >= self._deadline):
                return

    def _take_in(self, loop: EngineLoop) -> None:
        """Handles every waiting message; blocks for one when there is nothing else to do."""
        while True:
            try:
                client, message = self._intake.get(block=not self._has_else_to_do(loop))
            except queue.Empty:
                return
            match message:
                case ClientGone():
                    self._front.emit(loop.forget_client(client))
                case ModelLost(reason):
                    raise ExecutableError(reason)
                case StepWanted():  # the loop takes part in its turn
                    continue
                case DrainAndStop(seconds):
                    self._front.emit(loop.drain())
                    self._deadline = time.monotonic() + seconds
                case _:
                    self._front.emit(loop.handle(client, message))

    def _has_else_to_do(self, loop: EngineLoop) -> bool:
        """Returns whether not to block for a message: steps can run, the end is near, or idle work was done."""
        if loop.has_work or loop.stopped or self._deadline is not None:
            return True
        return self._intake.empty() and loop.idle()

    def _fail_all(self, loop: EngineLoop, reason: str, kind: ErrorKind) -> None:
        """Fails open requests, and messages that came in but were not handled yet."""
        self._front.emit(loop.fail_all(reason, kind))
        while not self._intake.empty():
            client, message = self._intake.get()
            if not isinstance(message, ClientGone | DrainAndStop | ModelLost | StepWanted):
                self._front.emit(loop.refuse(client, message, kind, reason))

    def on_terminate(self, *_: object) -> None:
        """Drains at the first SIGTERM and ends at once at a second one; during the start it exits."""
        if self._booting:
            self._booting = False
            sys.exit(0)
        again = self._deadline is not None
        self._intake.put((b"", DrainAndStop(0.0 if again else self._plan.serving.shutdown_timeout_s)))

    def _die(self, reason: str, code: int, *, is_lasting: bool = False) -> int:
        _log.error(reason, extra=fields(code=code))
        self._front.broadcast(Fatal(reason, is_lasting))
        return code
