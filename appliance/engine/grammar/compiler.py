"""Compiles constraints beside the loop, within budgets of number, size and time, and keeps what was compiled."""

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from appliance.base.hashing import sha256_hex
from appliance.base.log import fields, logger
from appliance.engine.grammar.interface import Grammar, GrammarError
from appliance.engine.messages import Constraint, Vocabulary

_log = logger("engine")

MAX_KEPT = 128  # compiled grammars and failures
MAX_KEPT_BYTES = 8 << 20  # of their sources
MAX_PENDING = 1024  # compilations asked for and not done; more requests are told to come back
MAX_PENDING_BYTES = 32 << 20  # of their sources
NUM_THREADS = 2
BUDGET_S = 10.0  # from when a request comes to when its grammar must be there

Outcome = Grammar | GrammarError


class Backend(Protocol):
    def compile(self, constraint: Constraint) -> Grammar:
        """Raises GrammarError."""


class GrammarCompiler:
    """For one thread, the loop's; its workers only compile. A compilation that outlives its budget goes on, holding
    one worker, until the back-end's own limits end it."""

    def __init__(self, load: Callable[[Vocabulary], Backend]) -> None:
        """`load` makes the back-end when a vocabulary has come; it may raise GrammarError."""
        self._load = load
        self._backend: Future[Backend] | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[str, tuple[Outcome, int]] = OrderedDict()
        self._kept_bytes = 0
        self._pending: dict[str, Future[Outcome]] = {}
        self._pending_bytes = 0

    @property
    def has_vocabulary(self) -> bool:
        return self._backend is not None

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= MAX_PENDING or self._pending_bytes >= MAX_PENDING_BYTES

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def use(self, vocabulary: Vocabulary) -> None:
        """The first vocabulary holds: every client of an engine speaks of the same model."""
        if self._backend is None:
            self._workers = ThreadPoolExecutor(NUM_THREADS, "engine-grammars")
            self._backend = self._workers.submit(self._load, vocabulary)

    def key(self, constraint: Constraint) -> str:
        """Names a constraint by what it says; the field to blame does not matter."""
        parts = (constraint.kind, str(constraint.whitespace), str(constraint.after), constraint.source)
        return sha256_hex("\0".join(f"{len(part)}:{part}" for part in parts).encode())

    def kept(self, key: str) -> Outcome | None:
        """What is compiled already."""
        if (found := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def begin(self, key: str, constraint: Constraint) -> Future[Outcome]:
        """Compiles in a worker, once for all that ask meanwhile. Needs a vocabulary."""
        if (running := self._pending.get(key)) is not None:
            return running
        assert self._workers is not None
        assert self._backend is not None
        self._pending_bytes += len(constraint.source)
        self._pending[key] = self._workers.submit(_compile, self._backend, constraint)
        return self._pending[key]

    def collect(self, key: str, constraint: Constraint) -> Outcome | None:
        """What `begin` led to; None while it runs. The first to collect puts it among what is kept."""
        running = self._pending.get(key)
        if running is None:
            return self.kept(key)
        if not running.done():
            return None
        del self._pending[key]
        self._pending_bytes -= len(constraint.source)
        outcome = running.result()
        self._keep(key, outcome, len(constraint.source))
        return outcome

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)

    def _keep(self, key: str, outcome: Outcome, size: int) -> None:
        self._kept[key] = (outcome, size)
        self._kept_bytes += size
        while len(self._kept) > MAX_KEPT or (self._kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1):
            _, (_, freed) = self._kept.popitem(last=False)
            self._kept_bytes -= freed


def _compile(backend: "Future[Backend]", constraint: Constraint) -> Outcome:
    started = time.monotonic()
    try:
        return backend.result().compile(constraint)
    except GrammarError as error:
        return error
    except BaseException as error:  # noqa: BLE001 - a panic of the library derives from it; the request alone fails
        _log.exception("a grammar could not be compiled", extra=fields(kind=constraint.kind))
        return GrammarError(f"it cannot be compiled ({type(error).__name__})")
    finally:
        _log.debug("grammar", extra=fields(kind=constraint.kind, seconds=round(time.monotonic() - started, 3)))
