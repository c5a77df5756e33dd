"""How long an engine has been silent or stuck, less the time in which this process did not run either."""

ABSENCE_S = 5.0  # far more than a busy event loop is late


class LifeSigns:
    """Times are of one monotonic clock, in seconds, and never go back.

    When the machine sleeps, or both processes are stopped, the engine is silent for no fault of its own: after an
    absence the wait begins anew. An absence is a gap between two calls, so there must be one at least every ABSENCE_S.
    """

    def __init__(self, now: float) -> None:
        self._heard = self._looked = now
        self._here_since = float("-inf")

    def heard(self, now: float) -> None:
        self._look(now)
        self._heard = now

    def silence(self, now: float) -> float:
        self._look(now)
        return now - self._heard

    def stuck(self, now: float, step_seconds: float) -> float:
        """Seconds of the running step that were observed."""
        self._look(now)
        return min(step_seconds, now - self._here_since)

    def _look(self, now: float) -> None:
        if now - self._looked > ABSENCE_S:
            self._heard = self._here_since = now
        self._looked = now
