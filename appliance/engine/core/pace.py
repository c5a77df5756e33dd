"""How many prompt tokens a step may take, so that it ends in time: a cost model learnt from the steps that ran.

A step of d decodes and p prompt tokens is taken to last decode(d) + p * per_token seconds. Both are moving averages of
what steps took: decode(d) by the power of two above d, from steps without prompts; per_token from the rest of steps
with prompts, so it follows the growing context of a long prompt. A step can be held up by other work on the machine,
and never hurried: so averages follow quick steps sooner than slow ones.
"""

WEIGHT_OF_SLOWER = 0.25  # of the newest step in a moving average
WEIGHT_OF_QUICKER = 0.5
MOST_SLOWER = 2.0  # a step that took more than so many times the average counts as this
ALONE = 4.0  # times the target: a step without decodes, which holds up only what comes in, aborts and the watchdog
MIN_SHARE = 0.25  # of a step's time for prompts, when the decodes alone take the target or more
MIN_TOKENS = 16  # prompt tokens a step: fewer cost nearly as much
FIRST_TOKENS = 64  # of the first step with a prompt, before anything is known


class Pace:
    """`target_s`: how long a step with decodes should last; None bounds nothing."""

    def __init__(self, target_s: float | None) -> None:
        self._target_s = target_s
        self._decode_s: dict[int, float] = {}
        self._token_s: float | None = None

    def learn(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Takes in how long a step took."""
        if num_prompt_tokens == 0:
            size = num_decodes.bit_length()
            self._decode_s[size] = _follow(self._decode_s.get(size), seconds)
        elif num_prompt_tokens >= MIN_TOKENS:
            rest = max(0.0, seconds - self.decode_seconds(num_decodes))
            self._token_s = _follow(self._token_s, rest / num_prompt_tokens)

    def prompt_tokens(self, num_decodes: int) -> int | None:
        """What a step with so many decodes may take of prompts; None when that is not bounded."""
        if self._target_s is None:
            return None
        if self._token_s is None:
            return FIRST_TOKENS
        decode_s = self.decode_seconds(num_decodes)
        target_s = self._target_s if num_decodes else ALONE * self._target_s
        seconds = max(target_s - decode_s, MIN_SHARE * max(target_s, decode_s))
        return max(MIN_TOKENS, int(seconds / max(self._token_s, 1e-9)))

    def prompt_rate(self, num_decodes: int, most: int) -> float:
        """Prompt tokens a second beside so many decodes, in steps of at most `most` tokens; 0 when nothing is known."""
        if self._token_s is None:
            return 0.0
        bound = self.prompt_tokens(num_decodes)
        tokens = most if bound is None else min(most, bound)
        return tokens / max(self.decode_seconds(num_decodes) + tokens * self._token_s, 1e-9)

    def decode_seconds(self, num_decodes: int) -> float:
        """Of a step of decodes alone; that of the nearest number of decodes that was seen, 0 when none was."""
        if num_decodes == 0 or not self._decode_s:
            return 0.0
        size = num_decodes.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda seen: (abs(seen - size), seen))]


def _follow(average: float | None, value: float) -> float:
    if not average:
        return value
    weight = WEIGHT_OF_SLOWER if value > average else WEIGHT_OF_QUICKER
    return average + weight * (min(value, average * MOST_SLOWER) - average)
