"""What stands before the engine besides its own limits: who may start what, and who is charged for it."""

from collections.abc import Sequence
from typing import Protocol

from appliance.engine.time_messages import RequestTimes
from appliance.service.requests import TextOutput, TextRequest


class Meter(Protocol):
    """Follows one group of admitted requests."""

    def add(self, output: TextOutput) -> None:
        """A sequence of the group gained this."""

    def timed(self, times: RequestTimes | None) -> None:
        """Takes the times that the engine measured for one request; None if there are none. It is called once for each
        request, even after `close`."""

    def close(self, reason: str) -> None:
        """The group has ended: stop, length, abort or error, of its last request. Called once."""


class RequestPolicy(Protocol):
    """Every request of every API passes it, in `EngineClient.generate`."""

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        """The requests as they will run. Raises RequestFailedError for those that may not."""


class PartMeter:
    """Counts the parts of a request that was admitted as a whole, and does not end it."""

    def __init__(self, whole: Meter) -> None:
        self.add = whole.add

    def timed(self, times: RequestTimes | None) -> None:
        """A part's times are not the whole's."""

    def close(self, reason: str) -> None:
        """The whole ends by itself."""


class OpenPolicy:
    """Admits everything as it is and counts nothing."""

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        return requests, self

    def add(self, output: TextOutput) -> None:
        """Charges no key."""

    def timed(self, times: RequestTimes | None) -> None:
        """Does nothing."""

    def close(self, reason: str) -> None:
        """Nothing is held."""
