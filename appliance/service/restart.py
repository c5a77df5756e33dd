"""When a failed engine is started again. Pure: time is an argument."""

from collections import deque

from appliance.plan.serving_types import RestartPlan


class RestartRule:
    """Allows at most max_restarts within window_s seconds; each wait is twice the one before it, from backoff_s on."""

    MAX_BACKOFF_S = 60.0

    def __init__(self, plan: RestartPlan) -> None:
        self._plan = plan
        self._failures: deque[float] = deque()

    def after_failure(self, now: float) -> float | None:
        """Seconds to wait before the next start; None when the engine is given up."""
        while self._failures and now - self._failures[0] > self._plan.window_s:
            self._failures.popleft()
        self._failures.append(now)
        if self._plan.policy == "never" or len(self._failures) > self._plan.max_restarts:
            return None
        return float(min(self._plan.backoff_s * 2.0 ** (len(self._failures) - 1), self.MAX_BACKOFF_S))

    def why_given_up(self) -> str:
        if self._plan.policy == "never":
            return "the plan says never to restart it"
        return f"it failed {len(self._failures)} times within {self._plan.window_s:g} s"
