"""Tries and compiles constraints beside the loop, within budgets of number, size and time; keeps compiled grammars."""

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from appliance.base.hashing import sha256_hex
from appliance.base.log import fields, logger
from appliance.engine.grammar.interface import Grammar, GrammarBackend, GrammarError, UntriedError
from appliance.engine.grammar.sandbox.client import Trials, Untried
from appliance.engine.grammar.threads import deep_stacks
from appliance.engine.messages import Constraint, Vocabulary

_log = logger("engine")

MAX_KEPT = 128  # compiled grammars and failures
MAX_KEPT_BYTES = 128 << 20  # of their sources, and of their memory as their trials measured it
MAX_LIVE_BYTES = 1 << 30  # of all grammars in use or kept; above it, more requests are refused as overload
MAX_PENDING = 1024  # compilations that are not done; above it, more requests are refused as overload
MAX_PENDING_BYTES = 32 << 20  # of their sources
NUM_THREADS = 4  # they mostly wait for trials: a trial that hangs must not delay the others
BUDGET_S = 10.0  # from the arrival of a request until its grammar must be compiled

Outcome = Grammar | GrammarError | UntriedError


@dataclass(frozen=True, slots=True)
class Compiled:
    """An outcome, and the bytes that it takes."""

    outcome: Outcome
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    running: Future[Compiled]
    size: int  # of its source


class GrammarCompiler:
    """Is called from the loop's thread only; its workers try and compile. A compilation that exceeds its budget goes on
    and holds one worker; it takes about as long as its trial, which has a limit."""

    def __init__(self, load: Callable[[Vocabulary], GrammarBackend], trials: Trials | None = None) -> None:
        """`load` makes the back-end once a vocabulary has come; it may raise GrammarError. A constraint reaches the
        back-end only after it passed `trials`; None lets all through."""
        self._load = load
        self._trials = trials if trials is not None else Untried()
        self._backend: Future[GrammarBackend] | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._kept_bytes = 0
        self._live: WeakKeyDictionary[Grammar, int] = WeakKeyDictionary()
        self._pending: dict[str, _Pending] = {}
        self._pending_bytes = 0

    @property
    def has_vocabulary(self) -> bool:
        return self._backend is not None

    @property
    def is_full(self) -> bool:
        """The limits of compiled grammars or of pending compilations are reached."""
        if self._is_busy:
            self._collect_all()
        return self._is_busy or sum(self._live.values()) >= MAX_LIVE_BYTES

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def use(self, vocabulary: Vocabulary) -> None:
        """Sets the vocabulary. Later ones are ignored: all clients of an engine use the same model."""
        if self._backend is None:
            self._workers = ThreadPoolExecutor(NUM_THREADS, "engine-grammars")
            with deep_stacks():
                self._workers.submit(_start, self._trials, vocabulary)
                self._backend = self._workers.submit(self._load, vocabulary)

    def key(self, constraint: Constraint) -> str:
        """Returns a digest of the constraint's content, without the field to blame."""
        parts = (constraint.kind, str(constraint.whitespace), str(constraint.after), constraint.source)
        return sha256_hex("\0".join(f"{len(part)}:{part}" for part in parts).encode())

    def kept(self, key: str) -> Outcome | None:
        """Returns the outcome that is kept under `key`, or None."""
        if (found := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return found.outcome

    def begin(self, key: str, constraint: Constraint) -> Future[Compiled]:
        """Tries and compiles in a worker, once for all requests that wait for it. It needs a vocabulary."""
        if (pending := self._pending.get(key)) is not None:
            return pending.running
        assert self._workers is not None
        assert self._backend is not None
        size = len(constraint.source)
        self._pending_bytes += size
        with deep_stacks():
            running = self._workers.submit(_compile, self._backend, self._trials, constraint)
        self._pending[key] = _Pending(running, size)
        return running

    def collect(self, key: str) -> Outcome | None:
        """Returns the outcome of `begin`; None while it runs. The first call keeps the outcome."""
        pending = self._pending.get(key)
        if pending is None:
            return self.kept(key)
        if not pending.running.done():
            return None
        del self._pending[key]
        self._pending_bytes -= pending.size
        compiled = pending.running.result()
        if not isinstance(compiled.outcome, UntriedError):
            self._keep(key, compiled)
        return compiled.outcome

    def close(self) -> None:
        self._trials.close()
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_busy(self) -> bool:
        return len(self._pending) >= MAX_PENDING or self._pending_bytes >= MAX_PENDING_BYTES

    def _collect_all(self) -> None:
        """Collects every finished compilation: for requests that went away, no other call would."""
        for key in list(self._pending):
            self.collect(key)

    def _keep(self, key: str, compiled: Compiled) -> None:
        if not isinstance(compiled.outcome, GrammarError | UntriedError):
            self._live[compiled.outcome] = compiled.size
        self._kept[key] = compiled
        self._kept_bytes += compiled.size
        while len(self._kept) > MAX_KEPT or (self._kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1):
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.size


def _start(trials: Trials, vocabulary: Vocabulary) -> None:
    try:
        trials.start(vocabulary)
    except OSError as error:  # each trial tries to start it again and reports a failure to its request
        _log.warning("the sandbox of grammars could not start", extra=fields(error=str(error)))


def _compile(backend: "Future[GrammarBackend]", trials: Trials, constraint: Constraint) -> Compiled:
    size = len(constraint.source)
    try:
        made = backend.result()
        passed = trials.try_out(constraint)
        size += passed.grown_bytes
        return Compiled(_timed(made, constraint, passed.text), size)
    except (GrammarError, UntriedError) as error:
        return Compiled(error, size)
    except BaseException:  # noqa: BLE001 - a panic of the library derives from it; the request alone fails
        _log.exception("a grammar could not be compiled", extra=fields(kind=constraint.kind))
        return Compiled(GrammarError("it cannot be compiled"), size)


def _timed(backend: GrammarBackend, constraint: Constraint, text: str | None) -> Grammar:
    started = time.monotonic()
    try:
        return backend.compile(constraint) if text is None else backend.compile(constraint, text)
    finally:
        _log.debug("grammar", extra=fields(kind=constraint.kind, seconds=round(time.monotonic() - started, 3)))
