"""How long prompts wait beside sequences that run, so that several start together."""


class PromptDelay:
    """A prompt waits for `factor` times what the last step with a prompt took, counted from its arrival.

    Nothing waits while no sequence runs. Times are seconds; those of an arrival and of `now` are of one clock.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._last_s = 0.0

    @property
    def holds_any(self) -> bool:
        return self._factor > 0

    def learn(self, num_prompt_tokens: int, seconds: float) -> None:
        """Takes how long a step lasted that had so many tokens of prompts."""
        if num_prompt_tokens:
            self._last_s = seconds

    def is_over(self, arrived: float, now: float, *, is_any_running: bool) -> bool:
        """Returns whether a prompt that arrived then may start."""
        return not is_any_running or now - arrived >= self._factor * self._last_s
