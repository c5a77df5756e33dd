"""The times and counts of one request, as its client sees them."""

from appliance.service.engine_metrics import EngineMetrics

_ANSWERED = ("stop", "length")


class RequestRecord:
    """The record of one request. Its inter-token time is a mean over the request, so that a token costs no work."""

    __slots__ = ("_adapter", "_arrival", "_first", "_last", "_max_tokens", "_num_prompt_tokens", "_num_tokens")

    def __init__(
        self, arrival: float, num_prompt_tokens: int, n: int, max_tokens: int, adapter: str | None = None
    ) -> None:
        self._adapter = adapter
        self._arrival = arrival
        self._first: float | None = None
        self._last = arrival
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = [0] * n
        self._max_tokens = max_tokens

    def advance(self, metrics: EngineMetrics | None, now: float, index: int, num_tokens: int) -> bool:
        """Counts tokens; returns True if they are the first of the request."""
        is_first = self._first is None and num_tokens > 0
        if is_first:
            self._first = now
            if metrics:
                metrics.observe("time_to_first_token_seconds", now - self._arrival)
        self._num_tokens[index] += num_tokens
        self._last = now
        return is_first

    def finish(self, metrics: EngineMetrics | None, now: float, reason: str) -> None:
        if metrics is None:
            return
        metrics.finished(reason)
        if self._adapter is not None:
            metrics.adapter_used(self._adapter, self._num_prompt_tokens, sum(self._num_tokens))
        metrics.observe("request_seconds", now - self._arrival)
        metrics.observe("request_prompt_tokens", self._num_prompt_tokens)
        metrics.observe("request_generation_tokens", sum(self._num_tokens))
        metrics.observe("request_longest_answer_tokens", max(self._num_tokens))
        metrics.observe("request_params_n", len(self._num_tokens))
        metrics.observe("request_params_max_tokens", self._max_tokens)
        between = self._between()
        if between is not None:
            metrics.observe("inter_token_seconds", between)
        if reason in _ANSWERED:
            first_s = None if self._first is None else self._first - self._arrival
            metrics.judge({"ttft": first_s, "itl": between, "tpot": between, "e2el": now - self._arrival})

    def _between(self) -> float | None:
        """Mean seconds between the tokens of a sequence; None where none has two."""
        n, num_tokens = len(self._num_tokens), sum(self._num_tokens)
        if self._first is None or num_tokens <= n:
            return None
        return (self._last - self._first) * n / (num_tokens - n)
