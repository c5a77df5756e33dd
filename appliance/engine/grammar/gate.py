"""The gate: requests with a constraint wait here until their grammar is compiled; then the scheduler gets them. While
it is shut, as weights change or the engine is paused, all that come wait here."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from appliance.engine.grammar.backends import backend_loader
from appliance.engine.grammar.compiler import BUDGET_S, Compiled, GrammarCompiler, Outcome
from appliance.engine.grammar.interface import Grammar, GrammarError, UntriedError
from appliance.engine.messages import Constraint, ErrorKind, GenerateRequest
from appliance.engine.refusal import Refusal, RequestKey

Clock = Callable[[], float]
Settled = tuple[bytes, GenerateRequest, Grammar | Refusal]


@dataclass(slots=True)
class _Waiting:
    client: bytes
    message: GenerateRequest
    constraint: Constraint
    grammar_key: str
    running: Future[Compiled]
    deadline: float


class GrammarGate:
    def __init__(self, compiler: GrammarCompiler, clock: Clock = time.monotonic, budget_s: float = BUDGET_S) -> None:
        self.compiler = compiler
        self._clock = clock
        self._budget_s = budget_s
        self._waiting: dict[RequestKey, _Waiting] = {}
        self._held: dict[RequestKey, GenerateRequest] = {}  # since it is shut
        self._shut_by: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def is_shut(self) -> bool:
        return bool(self._shut_by)

    @property
    def has_work(self) -> bool:
        """Requests wait here for what other threads do, and for nothing else."""
        return bool(self._waiting) and not self.is_shut

    @property
    def num_held(self) -> int:
        """The sequences of requests that wait until it opens."""
        return sum(message.sampling.n for message in self._held.values())

    def shut(self, holder: str) -> None:
        """Lets no request pass until the holder opens it again: `hold` takes them."""
        self._shut_by.add(holder)

    def hold(self, client: bytes, message: GenerateRequest) -> None:
        """Keeps a request until the gate opens. Raises Refusal."""
        self._check_id(client, message)
        self._held[client, message.request_id] = message

    def open(self, holder: str) -> list[tuple[bytes, GenerateRequest]]:
        """Removes and returns what was held, in its order, to be let in now; nothing while another holds it shut."""
        self._shut_by.discard(holder)
        if self.is_shut:
            return []
        held, self._held = self._held, {}
        return [(client, message) for (client, _), message in held.items()]

    def admit(self, client: bytes, message: GenerateRequest) -> Grammar | None:
        """Returns the request's grammar if it is compiled; else the request waits here, and the result is None.

        Raises Refusal.
        """
        constraint = message.constraint
        assert constraint is not None
        self._check_id(client, message)
        if not self.compiler.has_vocabulary:
            raise Refusal(ErrorKind.INTERNAL, constraint.field, "no vocabulary has come before the constraint")
        key = self.compiler.key(constraint)
        if (outcome := self.compiler.kept(key)) is not None:
            return _grammar(outcome, constraint)
        if self.compiler.is_full:
            raise Refusal(ErrorKind.OVERLOADED, None, "too many constraints are being compiled; try again later")
        running = self.compiler.begin(key, constraint)
        deadline = self._clock() + self._budget_s
        self._waiting[client, message.request_id] = _Waiting(client, message, constraint, key, running, deadline)
        return None

    def settled(self) -> list[Settled]:
        """Removes and returns the requests whose grammar is compiled, has failed or is too late; none while shut."""
        done: list[Settled] = []
        if self.is_shut:
            return done
        for key, waiting in list(self._waiting.items()):
            outcome = self.compiler.collect(waiting.grammar_key)
            if outcome is None and waiting.running.done():
                outcome = waiting.running.result().outcome
            if outcome is None and self._clock() < waiting.deadline:
                continue
            del self._waiting[key]
            done.append((waiting.client, waiting.message, self._answer(outcome, waiting)))
        return done

    def wait(self, seconds: float) -> None:
        """Waits until a compilation has ended, at most `seconds`."""
        wait([waiting.running for waiting in self._waiting.values()], seconds, FIRST_COMPLETED)

    def remove(self, keys: Iterable[RequestKey]) -> list[tuple[bytes, GenerateRequest]]:
        """Removes and returns requests that wait here. Unknown keys are ignored."""
        keys = list(keys)
        removed = [self._waiting.pop(key) for key in keys if key in self._waiting]
        held = [(key[0], self._held.pop(key)) for key in keys if key in self._held]
        return [(waiting.client, waiting.message) for waiting in removed] + held

    def keys(self, client: bytes | None = None) -> list[RequestKey]:
        """Returns the keys of one client's waiting requests, or of all."""
        return [key for key in (*self._waiting, *self._held) if client is None or key[0] == client]

    def _check_id(self, client: bytes, message: GenerateRequest) -> None:
        if (client, message.request_id) in self._waiting or (client, message.request_id) in self._held:
            raise Refusal(ErrorKind.INVALID, "request_id", f"request id {message.request_id!r} is in use")

    def _answer(self, outcome: Outcome | None, waiting: _Waiting) -> Grammar | Refusal:
        constraint = waiting.constraint
        if outcome is None and not waiting.running.running():
            return Refusal(ErrorKind.OVERLOADED, None, "other constraints take long to compile; try again later")
        if outcome is None:
            reason = f"the constraint took longer than {self._budget_s:g} s to compile"
            return Refusal(ErrorKind.INVALID, constraint.field, reason)
        try:
            return _grammar(outcome, constraint)
        except Refusal as refusal:
            return refusal


def closed_gate() -> GrammarGate:
    """Returns a gate that refuses every constraint."""
    return GrammarGate(GrammarCompiler(backend_loader(None, 0)))


def _grammar(outcome: Outcome, constraint: Constraint) -> Grammar:
    """Raises Refusal."""
    if isinstance(outcome, GrammarError):
        field = constraint.field_of(outcome.path)
        raise Refusal(ErrorKind.INVALID, field, f"{field}: {outcome}")
    if isinstance(outcome, UntriedError):
        raise Refusal(ErrorKind.OVERLOADED, None, str(outcome))
    return outcome
