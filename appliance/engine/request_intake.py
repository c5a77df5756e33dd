"""The way of a request into the scheduler: it is checked, and waits at the gate for its grammar or for new weights.
From both it is taken out where it ends early."""

import functools
from collections.abc import Callable, Iterable

from appliance.engine.core.results import Outputs, ended_output, refused_output
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.faults import row_fault
from appliance.engine.given_embeds import validate_embeds
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import ErrorKind, GenerateRequest, SequenceOutput
from appliance.engine.refusal import Refusal, RequestKey
from appliance.engine.runner import Runner
from appliance.engine.step import RowError
from appliance.engine.validation import InvalidSamplingError, SamplingLimits, validate_request

Answers = list[tuple[bytes, SequenceOutput]]  # (client, the answer to its request)


class RequestIntake:
    """Whatever goes wrong with a request here concerns it alone, and is its answer."""

    def __init__(self, scheduler: Scheduler, gate: GrammarGate, runner: Runner, limits: SamplingLimits) -> None:
        self.limits = limits
        self._scheduler, self._gate = scheduler, gate
        self._vocab_size, self._processors = runner.vocab_size, runner.processors

    def take(self, client: bytes, message: GenerateRequest) -> SequenceOutput | None:
        """Takes a request in; returns its answer if it is refused."""
        return _refusal(message, lambda: self._take(client, message))

    def let_in(self, waited: Iterable[tuple[bytes, GenerateRequest]]) -> Answers:
        """Takes in what has waited at the gate; returns the answers to what is refused."""
        taken = [(client, self.take(client, message)) for client, message in waited]
        return [(client, answer) for client, answer in taken if answer is not None]

    def open_requests(self, client: bytes | None = None) -> list[RequestKey]:
        """Returns the open requests of one client, or of all, whether or not they are in the scheduler yet."""
        return self._scheduler.open_requests(client) + self._gate.keys(client)

    def end(self, keys: list[RequestKey], index: int | None = None, error: RowError | None = None) -> Outputs:
        """Ends requests between steps, or one sequence of each: one that waits here has no sequences yet. error: they
        fail."""
        outputs = self._scheduler.abort(keys, index, error)
        if index is None:
            self.end_waiting(keys, outputs, error)
        return outputs

    def end_waiting(self, keys: list[RequestKey], outputs: Outputs, error: RowError | None = None) -> None:
        """Ends those of the requests that wait at the gate, and adds their last outputs to `outputs`."""
        for client, message in self._gate.remove(keys):
            ended = [ended_output(message.request_id, index, error) for index in range(message.sampling.n)]
            outputs.setdefault(client, []).extend(ended)

    def settled(self) -> Answers:
        """Takes those in whose grammar is compiled; returns the answers to those whose grammar failed."""
        answers = []
        for client, message, outcome in self._gate.settled():
            answer = _refusal(message, functools.partial(self._add, client, message, outcome))
            if answer is not None:
                answers.append((client, answer))
        return answers

    def _take(self, client: bytes, message: GenerateRequest) -> None:
        validate_request(message, self._vocab_size, self.limits)
        validate_embeds(message, self._scheduler.config.embeds_width)
        if self._gate.is_shut:  # what comes next is done once it opens
            self._scheduler.check_room(self._gate.num_held)
            self._gate.hold(client, message)
            return
        checked = self._processors.admit(message)
        if message.constraint is None:
            self._scheduler.add(client, checked)
        elif (grammar := self._gate.admit(client, checked)) is not None:
            self._scheduler.add(client, checked, grammar)

    def _add(self, client: bytes, message: GenerateRequest, outcome: Grammar | Refusal) -> None:
        if isinstance(outcome, Refusal):
            raise outcome
        self._scheduler.add(client, message, outcome)


def _refusal(message: GenerateRequest, add: Callable[[], None]) -> SequenceOutput | None:
    try:
        add()
    except InvalidSamplingError as error:
        return refused_output(message.request_id, ErrorKind.INVALID, error.field, str(error))
    except Refusal as refusal:
        return refused_output(message.request_id, refusal.kind, refusal.field, str(refusal))
    except Exception as error:  # noqa: BLE001 - any exception here concerns this request alone
        fault = row_fault("it was taken in", error)
        return refused_output(message.request_id, fault.kind, None, fault.reason)
    return None
