"""How many prompt tokens a step may take, so that it ends in time: a cost model learnt from the steps that ran.

A step of d decodes and p prompt tokens is taken to last decode(d) + p * per_token seconds. Both are moving averages of
what steps took: decode(d) by the power of two above d, from steps without prompts, and on straight lines between these;
per_token from the rest of steps with prompts, so it follows the growing context of a long prompt. A step can be held up
by other work on the machine, and never hurried: so averages follow quick steps sooner than slow ones.
"""

from typing import NamedTuple

from appliance.engine.core.gaps import LateGaps

WEIGHT_OF_SLOWER = 0.25  # of the newest step in a moving average
WEIGHT_OF_QUICKER = 0.5
MOST_SLOWER = 2.0  # a step that took more than so many times the average counts as this
UNREAD = 4.0  # times the target: a step that nobody reads, which holds up only what comes in, aborts and the watchdog
MIN_SHARE = 0.25  # of a step's time for prompts, when the decodes alone take the target or more
MIN_TOKENS = 16  # prompt tokens a step: fewer cost nearly as much
FIRST_TOKENS = 64  # of the first step with a prompt, before anything is known
LATE_S = 2.5  # of a step that is late by choice: a pause, not an end
LATE = 1.25  # a step is late when it takes so many times what it should
READERS_A_PROMPT = 8  # a late step has at least one prompt waiting for so many readers that it holds up
SHORT_STEPS = 2.0  # what so many steps in time can do is not worth a late one


class Decodes(NamedTuple):
    """Of a step: how many tokens it decodes, and how many of these somebody reads as they come."""

    num: int
    num_read: int


class Backlog(NamedTuple):
    """Prompts that run or wait, and how many tokens of them could run now."""

    num_prompts: int
    num_tokens: int


NO_BACKLOG = Backlog(0, 0)


class Pace:
    """`target_s`: how long a step with readers should last; None bounds nothing. `late_share`: of the gaps between
    tokens that are read, how many may be longer."""

    def __init__(self, target_s: float | None, late_share: float = 0.0) -> None:
        self._target_s = target_s
        self._late_gaps = LateGaps(late_share)
        self._decode_s: dict[int, tuple[float, float]] = {}  # by size: (number of decodes, seconds)
        self._token_s: float | None = None

    def learn(self, decodes: Decodes, num_prompt_tokens: int, seconds: float) -> None:
        """Takes in how long a step took."""
        if num_prompt_tokens == 0:
            size = decodes.num.bit_length()
            count, average = self._decode_s.get(size, (decodes.num, None))
            self._decode_s[size] = count + WEIGHT_OF_SLOWER * (decodes.num - count), _follow(average, seconds)
        elif num_prompt_tokens >= MIN_TOKENS:
            rest = max(0.0, seconds - self.decode_seconds(decodes.num))
            self._token_s = _follow(self._token_s, rest / num_prompt_tokens)
        if self._target_s is not None and decodes.num_read:
            should_s = self.decode_seconds(decodes.num) + self._prompt_seconds(decodes)
            self._late_gaps.count(decodes.num_read, late=seconds > LATE * should_s)

    def prompt_tokens(self, decodes: Decodes, backlog: Backlog = NO_BACKLOG) -> int | None:
        """What a step with these decodes may take of prompts; None when that is not bounded."""
        if self._target_s is None:
            return None
        if self._token_s is None:
            return FIRST_TOKENS
        tokens = max(MIN_TOKENS, int(self._prompt_seconds(decodes) / max(self._token_s, 1e-9)))
        if self._may_be_late(decodes.num_read, tokens, backlog):
            late_s = LATE_S - self.decode_seconds(decodes.num)
            tokens = max(tokens, int(late_s / max(self._token_s, 1e-9)))
        return tokens

    def prompt_rate(self, decodes: Decodes, most: int) -> float:
        """Prompt tokens a second beside these decodes, in steps of at most `most` tokens; 0 when nothing is known."""
        if self._token_s is None:
            return 0.0
        bound = self.prompt_tokens(decodes)
        tokens = most if bound is None else min(most, bound)
        return tokens / max(self.decode_seconds(decodes.num) + tokens * self._token_s, 1e-9)

    def decode_seconds(self, num_decodes: int) -> float:
        """Of a step of decodes alone: on the lines between what was seen, and level beyond the most."""
        below_count, below_s = 0.0, 0.0
        for count, seconds in sorted(self._decode_s.values()):
            if num_decodes <= count:
                share = (num_decodes - below_count) / (count - below_count)
                return below_s + share * (seconds - below_s)
            below_count, below_s = count, seconds
        return below_s

    def _prompt_seconds(self, decodes: Decodes) -> float:
        """For prompts in a step that is in time."""
        assert self._target_s is not None
        decode_s = self.decode_seconds(decodes.num)
        target_s = self._target_s if decodes.num_read else UNREAD * self._target_s
        return max(target_s - decode_s, MIN_SHARE * max(target_s, decode_s))

    def _may_be_late(self, num_readers: int, tokens_in_time: int, backlog: Backlog) -> bool:
        """Whether readers should wait for prompts: these are many beside them, and gaps may still be late."""
        if not 0 < num_readers <= READERS_A_PROMPT * backlog.num_prompts:
            return False
        return backlog.num_tokens > SHORT_STEPS * tokens_in_time and self._late_gaps.allow(num_readers)


def _follow(average: float | None, value: float) -> float:
    if not average:
        return value
    weight = WEIGHT_OF_SLOWER if value > average else WEIGHT_OF_QUICKER
    return average + weight * (min(value, average * MOST_SLOWER) - average)
