"""How many prompt tokens a step may take, so that it ends in time: a cost model learnt from the steps that ran.

A step of d decodes and p prompt tokens is taken to last decode(d) + p * per_token seconds. Both are moving averages of
what steps took: decode(d) by the power of two above d, from steps without prompts, and on straight lines between these;
per_token from the rest of steps with prompts, so it follows the growing context of a long prompt. A step can be held up
by other work on the machine, and never hurried: so averages follow quick steps sooner than slow ones.
"""

from math import ceil
from typing import NamedTuple

from appliance.engine.core.gaps import LateGaps

WEIGHT_OF_SLOWER = 0.25  # of the newest step in a moving average
WEIGHT_OF_QUICKER = 0.5
MOST_SLOWER = 2.0  # a step that took more than so many times the average counts as this
UNREAD = 4.0  # times the target: a step that nobody reads, which holds up only what comes in, aborts and the watchdog
ALONE_S = 2.5  # a step of prompts alone at most, where what comes in waits for the first one's end in any case
MIN_SHARE = 0.25  # of a step's time for prompts, when the decodes alone take the target or more
MIN_TOKENS = 16  # prompt tokens a step: fewer cost nearly as much
FIRST_TOKENS = 64  # of the first step with a prompt, before anything is known
PAUSE_S = 2.5  # that readers wait at most, by choice, while prompts run
PAUSE_STEP = 2.0  # times the target: a step of a pause, or longer until a prompt ends: then its first token goes out
LATE = 1.25  # a gap is late when it takes so many times what it should
READERS_A_PROMPT = 8  # a pause has at least one awaited prompt for so many readers that it holds up
SHORT_STEPS = 2.0  # what so many steps in time can do is not worth a pause


class DecodeCount(NamedTuple):
    """Sequences that decode, and how many of them somebody reads as they come."""

    num: int
    num_read: int


class Backlog(NamedTuple):
    """Prompts that run or wait: of how many somebody awaits the first token, how many tokens of all could run now, and
    how many of these are the first one's."""

    num_awaited: int
    num_tokens: int
    num_first: int


class Pace:
    """`target_s`: how long a step with readers should last; None bounds nothing. `late_share`: of the gaps between
    tokens that are read, how many may be longer."""

    def __init__(self, target_s: float | None, late_share: float = 0.0) -> None:
        self._target_s = target_s
        self._late_gaps = LateGaps(late_share)
        self._decode_s: dict[int, tuple[float, float]] = {}  # by size: (number of decodes, seconds)
        self._token_s: float | None = None
        self._is_pausing = False
        self._paused_s = 0.0  # since the last step with decodes

    def learn(self, decodes: DecodeCount, num_prompt_tokens: int, seconds: float) -> None:
        """Takes in how long a step took."""
        if num_prompt_tokens == 0:
            size = decodes.num.bit_length()
            count, average = self._decode_s.get(size, (decodes.num, None))
            self._decode_s[size] = count + WEIGHT_OF_SLOWER * (decodes.num - count), _follow(average, seconds)
        elif num_prompt_tokens >= MIN_TOKENS:
            rest = max(0.0, seconds - self.decode_seconds(decodes.num))
            self._token_s = _follow(self._token_s, rest / num_prompt_tokens)
        if self._is_pausing:
            self._paused_s += seconds
            return
        if self._target_s is not None and decodes.num_read:
            should_s = self.decode_seconds(decodes.num) + self._prompt_seconds(decodes)
            self._late_gaps.count(decodes.num_read, late=self._paused_s + seconds > LATE * should_s)
        self._paused_s = 0.0

    def prompt_tokens(self, decodes: DecodeCount, num_first: int = 0) -> int | None:
        """What a step with these decodes may take of prompts; None when that is not bounded.

        `num_first`: tokens left of the first prompt, where nothing that comes in would run before its end; 0 elsewhere.
        Without decodes, a shorter step would then bring nobody's token forward.
        """
        if self._target_s is None:
            return None
        in_time = self._tokens_in(self._prompt_seconds(decodes))
        return in_time if decodes.num else max(in_time, self._even_piece(num_first))

    def pause(self, decodes: DecodeCount, backlog: Backlog) -> int | None:
        """How many prompt tokens the next step takes when it leaves these decodes out; None when it should not."""
        self._is_pausing = self._may_go_on(decodes, backlog) if self._is_pausing else self._may_pause(decodes, backlog)
        if not self._is_pausing:
            return None
        assert self._target_s is not None
        most = self._tokens_in(self._left_s(decodes))
        return min(max(self._tokens_in(PAUSE_STEP * self._target_s), backlog.num_first), most)

    def end_pause(self) -> None:
        """No prompt can run: whoever waits for the pause's end waits no longer."""
        self._is_pausing = False

    def prompt_rate(self, decodes: DecodeCount, most: int) -> float:
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

    def _prompt_seconds(self, decodes: DecodeCount) -> float:
        """For prompts in a step that is in time."""
        assert self._target_s is not None
        decode_s = self.decode_seconds(decodes.num)
        target_s = self._target_s if decodes.num_read else UNREAD * self._target_s
        return max(target_s - decode_s, MIN_SHARE * max(target_s, decode_s))

    def _tokens_in(self, seconds: float) -> int:
        if self._token_s is None:
            return FIRST_TOKENS
        return max(MIN_TOKENS, int(seconds / max(self._token_s, 1e-9)))

    def _even_piece(self, num_tokens: int) -> int:
        """Of a prompt in as few pieces as ALONE_S allows."""
        count = ceil(num_tokens / self._tokens_in(ALONE_S))
        return ceil(num_tokens / max(1, count))

    def _may_pause(self, decodes: DecodeCount, backlog: Backlog) -> bool:
        """Whether readers should wait for others' first tokens: these are many beside them, and a gap may be late."""
        if not 0 < decodes.num_read <= READERS_A_PROMPT * backlog.num_awaited:
            return False
        if self._target_s is None or self._token_s is None or self._paused_s:
            return False
        in_time = self._tokens_in(self._prompt_seconds(decodes))
        return backlog.num_tokens > SHORT_STEPS * in_time and self._late_gaps.allow(decodes.num_read)

    def _may_go_on(self, decodes: DecodeCount, backlog: Backlog) -> bool:
        """Until no first token is awaited, or another step would not leave the decodes time to end within PAUSE_S."""
        assert self._target_s is not None
        return backlog.num_awaited > 0 and self._left_s(decodes) >= PAUSE_STEP * self._target_s / 2

    def _left_s(self, decodes: DecodeCount) -> float:
        """Of the pause, before the step that ends it."""
        return max(0.0, PAUSE_S - self._paused_s - self.decode_seconds(decodes.num))


def _follow(average: float | None, value: float) -> float:
    if not average:
        return value
    weight = WEIGHT_OF_SLOWER if value > average else WEIGHT_OF_QUICKER
    return average + weight * (min(value, average * MOST_SLOWER) - average)
