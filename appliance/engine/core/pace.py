"""The pace: how many prompt tokens a step may take to end in time, by a cost model learnt from past steps.

The model says that a step of d decodes and p prompt tokens lasts decode(d) + p * per_token seconds. Both are moving
averages of measured steps: decode(d) from steps without prompts, one average for each power of two above d, with linear
interpolation between them; per_token from the remaining time of steps with prompts, so it follows the growing context
of a long prompt. Other work on the machine can delay a step but not speed it up, so averages follow fast steps sooner.
"""

from math import ceil
from typing import NamedTuple

from appliance.engine.core.gaps import LateGaps
from appliance.engine.core.times import TimesBySize, follow

UNREAD = 4.0  # times the target, for a step without streams: it delays only new arrivals, aborts and the watchdog
ALONE_S = 2.5  # the longest step of prompts alone, when new arrivals wait for the first prompt's end in any case
MIN_SHARE = 0.25  # of a step's time for prompts, when the decodes alone take the target or more
MIN_TOKENS = 16  # prompt tokens a step: fewer cost nearly as much
FIRST_TOKENS = 64  # prompt tokens of the first step with a prompt, before per_token is known
PAUSE_S = 2.5  # the longest time that streams wait by choice while prompts run
PAUSE_STEP = 2.0  # times the target: a step in a pause; longer if it then ends a prompt and gives its first token
LATE = 1.25  # a gap is late when it is longer than this many times the planned step
READERS_A_PROMPT = 8  # a pause delays at most this many streams for each prompt whose first token is awaited
SHORT_STEPS = 2.0  # a backlog that this many steps of usual length can do is not worth a pause


class DecodeCount(NamedTuple):
    """The number of sequences that decode, and how many of these are streamed."""

    num: int
    num_read: int


class Backlog(NamedTuple):
    """Prompts that run or wait: how many are streamed, so that a client awaits the first token; how many prompt tokens
    could run now; and how many of these belong to the first prompt."""

    num_awaited: int
    num_tokens: int
    num_first: int


class Pace:
    """`target_s`: how long a step with streamed decodes should last; None sets no bound. `late_share`: the share of
    gaps between streamed tokens that may be longer."""

    def __init__(self, target_s: float | None, late_share: float = 0.0) -> None:
        self._target_s = target_s
        self._late_gaps = LateGaps(late_share)
        self._decodes = TimesBySize()
        self._token_s: float | None = None
        self._is_pausing = False
        self._paused_s = 0.0  # since the last step with decodes

    def learn(self, decodes: DecodeCount, num_prompt_tokens: int, seconds: float, *, verifies: bool = False) -> None:
        """Updates the model with the measured seconds of a step. `verifies`: its decodes ran drafts, so that they are
        not what the averages are of."""
        if verifies:
            self._paused_s = 0.0
            return
        if num_prompt_tokens == 0:
            self._decodes.learn(decodes.num, seconds)
        elif num_prompt_tokens >= MIN_TOKENS:
            rest = max(0.0, seconds - self.decode_seconds(decodes.num))
            self._token_s = follow(self._token_s, rest / num_prompt_tokens)
        if self._is_pausing:
            self._paused_s += seconds
            return
        if self._target_s is not None and decodes.num_read:
            should_s = self.decode_seconds(decodes.num) + self._prompt_seconds(decodes)
            self._late_gaps.count(decodes.num_read, late=self._paused_s + seconds > LATE * should_s)
        self._paused_s = 0.0

    def prompt_tokens(self, decodes: DecodeCount, num_first: int = 0) -> int | None:
        """Returns how many prompt tokens a step with these decodes may take; None if there is no bound.

        `num_first`: tokens left of the first prompt if no new arrival would run before its end, else 0. In that case,
        and without decodes, a shorter step would bring no token forward.
        """
        if self._target_s is None:
            return None
        in_time = self._tokens_in(self._prompt_seconds(decodes))
        return in_time if decodes.num else max(in_time, self._even_piece(num_first))

    def pause(self, decodes: DecodeCount, backlog: Backlog) -> int | None:
        """Returns how many prompt tokens the next step takes if it leaves these decodes out; None if it should not."""
        self._is_pausing = self._may_go_on(decodes, backlog) if self._is_pausing else self._may_pause(decodes, backlog)
        if not self._is_pausing:
            return None
        assert self._target_s is not None
        most = self._tokens_in(self._left_s(decodes))
        return min(max(self._tokens_in(PAUSE_STEP * self._target_s), backlog.num_first), most)

    def end_pause(self) -> None:
        """Ends a pause, because no prompt can run; decodes run again."""
        self._is_pausing = False

    @property
    def target_s(self) -> float | None:
        """How long a step with streamed decodes should last."""
        return self._target_s

    @property
    def token_s(self) -> float | None:
        """The seconds of a prompt's token; None before any was measured."""
        return self._token_s

    def prompt_rate(self, decodes: DecodeCount, most: int) -> float:
        """Returns prompt tokens a second beside these decodes, in steps of at most `most` tokens; 0 if not known."""
        if self._token_s is None:
            return 0.0
        bound = self.prompt_tokens(decodes)
        tokens = most if bound is None else min(most, bound)
        return tokens / max(self.decode_seconds(decodes.num) + tokens * self._token_s, 1e-9)

    def decode_seconds(self, num_decodes: int) -> float:
        """Returns the seconds of a decode-only step; 0 if none was measured."""
        return self._decodes.seconds(num_decodes)

    def _prompt_seconds(self, decodes: DecodeCount) -> float:
        """Returns the seconds that a step on time has for prompts."""
        assert self._target_s is not None
        decode_s = self.decode_seconds(decodes.num)
        target_s = self._target_s if decodes.num_read else UNREAD * self._target_s
        return max(target_s - decode_s, MIN_SHARE * max(target_s, decode_s))

    def _tokens_in(self, seconds: float) -> int:
        if self._token_s is None:
            return FIRST_TOKENS
        return max(MIN_TOKENS, int(seconds / max(self._token_s, 1e-9)))

    def _even_piece(self, num_tokens: int) -> int:
        """Returns the chunk length that cuts a prompt into as few equal chunks as ALONE_S allows."""
        count = ceil(num_tokens / self._tokens_in(ALONE_S))
        return ceil(num_tokens / max(1, count))

    def _may_pause(self, decodes: DecodeCount, backlog: Backlog) -> bool:
        """Returns whether streams should wait for others' first tokens: enough are awaited, and gaps may be late."""
        if not 0 < decodes.num_read <= READERS_A_PROMPT * backlog.num_awaited:
            return False
        if self._target_s is None or self._token_s is None or self._paused_s:
            return False
        in_time = self._tokens_in(self._prompt_seconds(decodes))
        return backlog.num_tokens > SHORT_STEPS * in_time and self._late_gaps.allow(decodes.num_read)

    def _may_go_on(self, decodes: DecodeCount, backlog: Backlog) -> bool:
        """Returns True while a first token is awaited and another step would still let the pause end within PAUSE_S."""
        assert self._target_s is not None
        return backlog.num_awaited > 0 and self._left_s(decodes) >= PAUSE_STEP * self._target_s / 2

    def _left_s(self, decodes: DecodeCount) -> float:
        """Returns the seconds left of the pause before the step of decodes that ends it."""
        return max(0.0, PAUSE_S - self._paused_s - self.decode_seconds(decodes.num))
