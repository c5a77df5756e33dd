"""The way of a request into the scheduler: it is checked, and waits at the gate for its grammar or for new weights."""

import functools
from collections.abc import Callable

from appliance.engine.core.results import refused_output
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.faults import row_fault
from appliance.engine.given_embeds import validate_embeds
from appliance.engine.grammar.gate import GrammarGate
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import ErrorKind, GenerateRequest, SequenceOutput
from appliance.engine.refusal import Refusal
from appliance.engine.runner import Runner
from appliance.engine.validation import InvalidSamplingError, SamplingLimits, validate_request


class RequestIntake:
    """Whatever goes wrong with a request here concerns it alone, and is its answer."""

    def __init__(self, scheduler: Scheduler, gate: GrammarGate, runner: Runner, limits: SamplingLimits) -> None:
        self.limits = limits
        self._scheduler, self._gate = scheduler, gate
        self._vocab_size, self._processors = runner.vocab_size, runner.processors

    def take(self, client: bytes, message: GenerateRequest) -> SequenceOutput | None:
        """Takes a request in; returns its answer if it is refused."""
        return _refusal(message, lambda: self._take(client, message))

    def settled(self) -> list[tuple[bytes, SequenceOutput]]:
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
