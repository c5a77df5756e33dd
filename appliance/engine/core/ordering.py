"""The order of a scheduling policy of the operator's own, which is asked before each step that may start sequences."""

from collections.abc import Callable

from appliance.base.log import fields, logger
from appliance.base.plugin_types import OpenSequence
from appliance.engine.core.books import Books
from appliance.engine.core.policy import Policy, PolicyKey
from appliance.engine.core.sequence import Sequence, Status

AskPolicy = Callable[[list[OpenSequence]], list[int]]
"""Returns the ids of all sequences in order. It may raise, and its answer may be wrong; it comes back within bounds."""

_log = logger("engine")


class WrongOrderError(Exception):
    """A policy named other sequences than those that are open."""


class Ordering:
    """Where the policy fails, the planned one decides for that step. Tokens do not depend on either."""

    def __init__(self, books: Books, ask: AskPolicy, planned: Policy) -> None:
        self._books, self._ask, self._planned = books, ask, planned
        self.num_faults = 0

    def arrange(self) -> None:
        """Puts the open sequences into the policy's order."""
        every = self._books.open_sequences()
        if len(every) < 2:
            return
        try:
            places = _places(self._ask([_seen(sequence) for sequence in every]), every)
        except Exception as error:  # noqa: BLE001 - whatever the operator's code raises, a step is planned
            self._note(error)
            self._books.arrange(self._planned_key)
            return
        self._books.arrange(lambda sequence: places.get(sequence.order, sequence.key))

    def _planned_key(self, sequence: Sequence) -> PolicyKey:
        if sequence.request.is_check:
            return sequence.key
        message = sequence.request.message
        return self._planned(message.priority, message.arrival_time, sequence.leader.order, sequence.index)

    def _note(self, error: Exception) -> None:
        self.num_faults += 1
        if self.num_faults == 1:  # steps are many: the others are counted
            reason = f"{type(error).__name__}: {error}"
            _log.error("the scheduling policy failed; the planned one decides", extra=fields(error=reason))


def _places(order: list[int], every: list[Sequence]) -> dict[int, PolicyKey]:
    """Returns the key of each sequence by its id. Raises WrongOrderError."""
    places: dict[int, PolicyKey] = {number: (place,) for place, number in enumerate(order)}
    if len(order) != len(every) or places.keys() != {sequence.order for sequence in every}:
        raise WrongOrderError(f"order returned {len(order)} ids ({len(places)} different) for {len(every)} sequences")
    return places


def _seen(sequence: Sequence) -> OpenSequence:
    message = sequence.request.message
    return OpenSequence(
        id=sequence.order,
        request_id=message.request_id,
        index=sequence.index,
        is_running=sequence.status is Status.RUNNING,
        priority=message.priority,
        arrival_time=message.arrival_time,
        adapter=message.adapter,
        num_prompt=sequence.num_prompt,
        num_computed=sequence.num_verified,
        num_output=len(sequence.tokens) - sequence.num_prompt,
        max_output=sequence.stop_length - sequence.num_prompt,
    )
