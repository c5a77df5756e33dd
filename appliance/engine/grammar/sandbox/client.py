"""The engine's side of the sandbox: constraints are tried in another process, whose crash costs one request."""

import signal
import socket
import subprocess
import sys
import threading
from typing import NoReturn, Protocol

from appliance.base.log import fields, logger
from appliance.engine.grammar.interface import GrammarError, UntriedError
from appliance.engine.grammar.sandbox.wire import Start, TrialLimits, Verdict, receive, send
from appliance.engine.messages import Constraint, Vocabulary

_log = logger("engine")

_DEFAULT = TrialLimits()
_START_S = 30.0  # how long a trial waits for the sandbox to load its vocabulary
_ATTEMPTS = 2  # a sandbox that ended is restarted once for each constraint


class Trials(Protocol):
    """Tries constraints where their failure costs nothing. Safe to use from any thread."""

    def start(self, vocabulary: Vocabulary) -> None: ...

    def try_out(self, constraint: Constraint) -> Verdict:
        """Returns the verdict of a constraint that passed. Raises GrammarError if it must not reach the engine, and
        UntriedError if it could not be tried."""

    def close(self) -> None: ...


class Untried:
    """Lets every constraint through: for tests, and for constraints that no client sent."""

    def start(self, vocabulary: Vocabulary) -> None:
        pass

    def try_out(self, constraint: Constraint) -> Verdict:
        return Verdict()

    def close(self) -> None:
        pass


class Sandbox:
    """Runs sandbox.process. `start` is called once; a process that has ended is replaced when it is needed again."""

    def __init__(self, backend: str, vocab_size: int, limits: TrialLimits = _DEFAULT) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._limits = limits
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()  # guards the fields below
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    def start(self, vocabulary: Vocabulary) -> None:
        """Starts the process and sends the vocabulary, which it then loads. Raises OSError."""
        self._vocabulary = vocabulary
        with self._lock:
            self._running()

    def try_out(self, constraint: Constraint) -> Verdict:
        for _ in range(_ATTEMPTS):
            try:
                verdict = self._verdict(constraint)
            except OSError as error:
                _log.warning("the sandbox of grammars does not answer", extra=fields(error=str(error)))
                verdict = None
            if verdict is not None:
                self._judge(verdict, constraint)
                return verdict
            with self._lock:
                self._end()
        raise UntriedError("the constraint could not be tried before its use; try again later")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._end()

    def _verdict(self, constraint: Constraint) -> Verdict | None:
        """Returns None when the process is gone. Raises OSError, including TimeoutError."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                socket.send_fds(self._running(), [b"t"], [theirs.fileno()])
            ours.settimeout(_START_S + self._limits.wall_s)
            send(ours, constraint)
            return receive(ours, Verdict)

    def _judge(self, verdict: Verdict, constraint: Constraint) -> None:
        if verdict.died is not None:
            self._died(verdict.died, constraint)
        if verdict.reason is not None:
            raise GrammarError(verdict.reason, verdict.path)

    def _died(self, number: int, constraint: Constraint) -> NoReturn:
        _log.warning("a constraint ended its trial", extra=fields(kind=constraint.kind, signal=number))
        limits = self._limits
        if number == signal.SIGKILL:
            raise UntriedError(f"the constraint could not be tried within {limits.wall_s:g} s; try again later")
        if number == signal.SIGXCPU:
            raise GrammarError(f"it takes more than {limits.cpu_s} s to compile")
        if number == signal.SIGSEGV:
            raise GrammarError("it is nested, or its rules follow one another, too deeply to be compiled")
        raise GrammarError(f"it is too large or too complex to be compiled in {limits.memory_bytes >> 20} MiB")

    def _running(self) -> socket.socket:
        """Returns the socket of the running process, and starts one if needed. Needs the lock. Raises OSError."""
        if self._process is not None and self._process.poll() is not None:
            _log.warning("the sandbox of grammars ended", extra=fields(code=self._process.returncode))
            self._end()
        if self._control is None:
            if self._is_closed or self._vocabulary is None:
                raise OSError("the sandbox is closed")
            self._spawn(self._vocabulary)
        assert self._control is not None
        return self._control

    def _spawn(self, vocabulary: Vocabulary) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "appliance.engine.grammar.sandbox.process", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        self._control = ours
        ours.settimeout(_START_S)
        start = Start(backend=self._backend, vocab_size=self._vocab_size, vocabulary=vocabulary, limits=self._limits)
        send(ours, start)

    def _end(self) -> None:
        """Ends the process, and with it its running trials. Needs the lock."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
