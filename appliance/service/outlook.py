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
        # Of open requests without a token: prompt tokens, and how many of these nobody expects to be cached.
        self._ahead: dict[str, tuple[int, int]] = {}
        self._num_ahead = 0
        self._num_new = 0
        self._ended_at: float | None = None  # the last sequence that ended while others waited
        self._turn_s: float | None = None

    @property
    def num_ahead(self) -> int:
        """Prompt tokens that wait for a first token."""
        return self._num_ahead

    @property
    def num_new(self) -> int:
        """Prompt tokens that wait for a first token, and that nobody expects to be cached."""
        return self._num_new

    def use_max_num_seqs(self, max_num_seqs: int) -> None:
        """The engine that runs from now on takes as many sequences at once."""
        self._max_num_seqs = max_num_seqs

    def opened(self, key: str, num_prompt_tokens: int, num_known: int = 0) -> None:
        """num_known: tokens at the prompt's beginning that are expected to be cached."""
        self._ahead[key] = num_prompt_tokens, num_prompt_tokens - num_known
        self._num_ahead += num_prompt_tokens
        self._num_new += num_prompt_tokens - num_known

    def answered(self, key: str) -> None:
        """Notes that a request has its first token, or has ended without one."""
        num_ahead, num_new = self._ahead.pop(key, (0, 0))
        self._num_ahead -= num_ahead
        self._num_new -= num_new

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
