"""The sandbox process: `python -m appliance.engine.grammar.sandbox.process FD`.

It loads the vocabulary once and forks a child for every trial, so a trial costs milliseconds and its crash costs
nothing. It has one thread and reads no client data itself. It ends when the engine closes its end of FD, or dies; its
children end with it.
"""

import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.base.prctl import end_with_parent, set_process_name
from appliance.engine.grammar.backends import backend_loader
from appliance.engine.grammar.interface import GrammarBackend, GrammarError
from appliance.engine.grammar.sandbox.schemas import check_schemas
from appliance.engine.grammar.sandbox.wire import Start, TrialLimits, Verdict, receive, send
from appliance.engine.messages import Constraint

_NAME = b"grammar-sandbox"
_SLOWER = 10  # the niceness of a trial that takes long


@dataclass(slots=True)
class _Trial:
    pid: int
    answer: socket.socket
    began: float
    is_slow: bool = False


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides when we end
    control = socket.socket(fileno=int(arguments[0]))
    set_process_name(_NAME)
    start = receive(control, Start)
    if start is not None:
        _Sandbox(control, start).run()
    return 0


class _Sandbox:
    def __init__(self, control: socket.socket, start: Start) -> None:
        self._control = control
        self._limits = start.limits
        self._backend: GrammarBackend | GrammarError
        try:
            self._backend = backend_loader(start.backend, start.vocab_size)(start.vocabulary)
        except GrammarError as error:
            self._backend = error
        self._trials: dict[int, _Trial] = {}  # by the child's pidfd
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        gc.collect()
        gc.freeze()  # children then write to fewer pages

    def run(self) -> None:
        """Runs trials until the engine is gone."""
        while True:
            for key, _ in self._selector.select(self._limits.slow_s / 2 if self._trials else None):
                if key.fileobj is not self._control:
                    self._end(key.fd)
                elif not self._take():
                    self._kill_all()
                    return
            self._watch()

    def _take(self) -> bool:
        """Starts a trial on the received descriptor, which carries its constraint and its verdict. Returns False when
        the engine is gone."""
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not descriptors:
            return False
        answer = socket.socket(fileno=descriptors[0])
        if isinstance(self._backend, GrammarError):
            _answer(answer, Verdict(reason=str(self._backend), path=self._backend.path))
            return True
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _child(answer, self._backend, self._limits)
        watched = os.pidfd_open(pid)
        self._trials[watched] = _Trial(pid, answer, time.monotonic())
        self._selector.register(watched, selectors.EVENT_READ)
        return True

    def _end(self, watched: int) -> None:
        self._selector.unregister(watched)
        os.close(watched)
        trial = self._trials.pop(watched)
        _, status = os.waitpid(trial.pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            trial.answer.close()
        else:
            _answer(trial.answer, Verdict(died=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))

    def _watch(self) -> None:
        for trial in self._trials.values():
            seconds = time.monotonic() - trial.began
            if seconds > self._limits.wall_s:
                os.kill(trial.pid, signal.SIGKILL)
            elif seconds > self._limits.slow_s and not trial.is_slow:
                trial.is_slow = True
                os.setpriority(os.PRIO_PROCESS, trial.pid, _SLOWER)

    def _kill_all(self) -> None:
        for trial in self._trials.values():
            os.kill(trial.pid, signal.SIGKILL)


def _answer(connection: socket.socket, verdict: Verdict) -> None:
    try:
        send(connection, verdict)
    except OSError:
        pass  # the engine no longer waits for this verdict
    finally:
        connection.close()


def _child(answer: socket.socket, backend: GrammarBackend, limits: TrialLimits) -> None:
    """Runs one trial in the forked child, and exits."""
    code = 1
    try:
        if end_with_parent(os.getppid()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic of the library would print client data there
            constraint = receive(answer, Constraint)
            if constraint is not None:
                _limit(limits)
                send(answer, tried(backend, constraint))
            code = 0
    finally:
        os._exit(code)


def tried(backend: GrammarBackend, constraint: Constraint) -> Verdict:
    """Checks, compiles and rehearses the constraint in this process."""
    before = _anonymous_bytes()
    try:
        check_schemas(constraint)
        text = backend.prepare(constraint)
        backend.compile(constraint, text).rehearse()
    except GrammarError as error:
        return Verdict(reason=str(error), path=error.path)
    except MemoryError:
        return Verdict(died=signal.SIGABRT)
    return Verdict(text=text, grown_bytes=max(0, _anonymous_bytes() - before))


def _limit(limits: TrialLimits) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = {
        resource.RLIMIT_AS: mapped + limits.memory_bytes,
        resource.RLIMIT_STACK: limits.stack_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for name, value in most.items():
        resource.setrlimit(name, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))  # the soft limit ends it by SIGXCPU


def _anonymous_bytes() -> int:
    """Returns the resident bytes of this process that are neither code nor files."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
