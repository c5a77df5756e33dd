"""Refuses what would wait too long for its first token, while it is still cheap to go elsewhere."""

import math
from collections.abc import Sequence

from appliance.engine.messages import ErrorKind
from appliance.service.errors import RequestFailedError
from appliance.service.policy import Meter, RequestPolicy
from appliance.service.requests import TextRequest
from appliance.service.service_client import ServiceClient


class SheddingPolicy:
    """Applies another policy to requests that would not wait longer than `above_s`. A refused request is not charged.

    The wait is the queue's alone: a long prompt is not refused for its own length, so whatever comes when nothing is
    open is taken.
    """

    def __init__(self, rules: RequestPolicy, client: ServiceClient, above_s: float) -> None:
        self._rules = rules
        self._client = client
        self._above_s = above_s

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        """Raises RequestFailedError, overloaded: try again when the queue has shrunk to what is allowed."""
        wait_s = self._client.predicted_wait_s()
        if wait_s > self._above_s:
            self._client.note_shed()
            reason = f"the queue is {wait_s:.1f} s long, and requests are refused above {self._above_s:g} s"
            after_s = math.ceil(wait_s - self._above_s)
            raise RequestFailedError(ErrorKind.OVERLOADED, reason, code="slo_shed", retry_after_s=after_s)
        return self._rules.admit(requests)
