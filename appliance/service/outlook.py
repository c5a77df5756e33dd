"""Predicts the wait of a new request for its first token, from what is open and what the engine measured."""

from appliance.engine.messages import EngineStats

_WEIGHT = 0.2  # of the newest gap in the moving average


class Outlook:
    """Prompts ahead of a newcomer have to be computed, and a place in the batch has to become free for it.

    Prompts are taken to need (tokens / rate) seconds: their tokens less the share that the prefix cache has been
    finding, at the rate of the scheduler's own cost model. A place is taken to become free as often as sequences have
    been ending while others waited, as a moving average. The longer of the two counts.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._ahead: dict[str, int] = {}  # prompt tokens of the open requests that have no token yet
        self._num_ahead = 0
        self._ended_at: float | None = None  # the last sequence that ended while others waited
        self._turn_s: float | None = None

    @property
    def num_ahead(self) -> int:
        """Prompt tokens that wait for a first token."""
        return self._num_ahead

    def opened(self, key: str, num_prompt_tokens: int) -> None:
        self._ahead[key] = num_prompt_tokens
        self._num_ahead += num_prompt_tokens

    def answered(self, key: str) -> None:
        """Notes that a request has its first token, or has ended without one."""
        self._num_ahead -= self._ahead.pop(key, 0)

    def ended(self, num_sequences: int, num_open: int, now: float) -> None:
        """Notes that sequences have ended; `num_open` were open before."""
        if num_open <= self._max_num_seqs:
            self._ended_at = None
            return
        if self._ended_at is not None:
            turn_s = (now - self._ended_at) / num_sequences
            self._turn_s = turn_s if self._turn_s is None else self._turn_s + _WEIGHT * (turn_s - self._turn_s)
        self._ended_at = now

    def wait_s(self, num_open: int, stats: EngineStats | None, num_ahead_elsewhere: int = 0) -> float:
        """Seconds before the prompt of a newcomer is looked at; 0 where nothing was measured yet.

        num_ahead_elsewhere: prompt tokens of other clients of the engine.
        """
        if stats is None:
            return 0.0
        places = max(0, num_open + 1 - self._max_num_seqs) * (self._turn_s or 0.0)
        if not stats.prompt_tokens_per_s:
            return places
        fresh = 1.0 - stats.prefix_hits / max(stats.prefix_queries, 1)
        return max(places, (self._num_ahead + num_ahead_elsewhere) * fresh / stats.prompt_tokens_per_s)
