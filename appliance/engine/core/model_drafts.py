"""Drafts of a model: whether it drafts before the next step, for which rows, and how many tokens.

A drafting model takes time, so it is decided before it runs: as many tokens as maximise those of the cycle of drafting
and verifying by its seconds, from measured times and acceptance. It may be none. What seems not to pay is tried again
now and then, for at most TRIAL_SHARE of the time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from appliance.engine.core.acceptance import AcceptanceRates
from appliance.engine.core.pace import Pace
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.step_costs import StepCosts
from appliance.engine.core.times import TimesBySize, follow
from appliance.engine.messages import SpeculationCaps
from appliance.engine.step import Drafted, DraftTokens, DraftWish

STRENGTH = 2  # the class of a model's drafts: before any was verified, four of five are presumed to be accepted
NEAR = 4  # tokens: a row that is no further behind, beside those of a draft, is read on with its next draft
LEAST_GAIN = 1.02  # a cycle with drafts must promise so many times the tokens a second
TRIAL_SHARE = 0.005  # of the time, for drafts that seem not to pay
TRIAL_TOKENS = 2
CATCH_UP_S = 0.15  # of one step, to read what a row is behind, where no step has a target
FIRST_CATCH_UP = 64  # tokens, before their time is known


class _Choice(NamedTuple):
    """The first sequences of those offered, and how many tokens to draft for each; `rate`: tokens a second then."""

    num_rows: int = 0
    num_tokens: int = 0
    rate: float = 0.0


class ModelDrafts:
    """Decides what the drafting model does, and learns what it costs."""

    def __init__(
        self, caps: SpeculationCaps, most_tokens: int, pace: Pace, rates: AcceptanceRates, costs: StepCosts
    ) -> None:
        self._method = caps.model_method or ""
        self._share = caps.model_share
        self._reach = caps.model_reach
        self._most_tokens = most_tokens
        self._most_tokens_of_draft = caps.num_tokens
        self._pace = pace
        self._rates = rates
        self._costs = costs
        self._passes = TimesBySize()  # by number of rows
        self._token_s: float | None = None  # of a token that a row was behind
        self._credit_s = 0.0  # for trials
        self._is_trial = False
        self._chosen: list[Sequence] = []
        self._num_tokens = 0
        self.seconds = 0.0
        self.num_passes = 0

    @property
    def is_due(self) -> bool:
        """The model drafts before the next step."""
        return bool(self._chosen)

    def decide(self, caps: SpeculationCaps, running: list[Sequence], mean_output: float) -> None:
        """Decides about the next draft, of the sequences whose known tokens will all have run. It is called when a step
        was planned, in which they run."""
        self._chosen, self._is_trial = [], False
        able = [each for each in running if _can_follow(each)]
        self._most_tokens_of_draft = most = min(caps.num_tokens, self._most_tokens)
        if not caps.adaptive:
            self._chosen, self._num_tokens = able[: self._most_tokens // most], most
            return
        base_s = self._pace.decode_seconds(len(running))
        if not base_s or not able:
            return  # a decode without drafts is measured first
        able.sort(key=self._first_rate, reverse=True)
        best = self._best(able, len(running), base_s, most)
        if best.num_rows:
            gain_s = len(running) and base_s / len(running) - 1.0 / best.rate
            chosen = able[: best.num_rows]
            self._chosen = [each for each in chosen if self._is_worth_reading(each, gain_s, mean_output)]
            self._num_tokens = best.num_tokens
        self._credit_s += TRIAL_SHARE * base_s
        if not self._chosen:
            self._try(able, base_s, min(most, TRIAL_TOKENS))

    def wish(self, running: Iterable[Sequence]) -> tuple[DraftWish | None, bool]:
        """Returns what was decided, for the sequences that still run, and whether it is a trial."""
        alive = {id(each) for each in running}
        chosen = [each for each in self._chosen if id(each) in alive and each.has_run_prompt and _can_follow(each)]
        self._chosen = []
        rows = tuple(each.row for each in chosen if not self._has_better(each))
        if not rows:
            return None, False
        return DraftWish(rows, self._num_tokens, self._most_behind(len(alive))), self._is_trial

    def learn(self, wish: DraftWish, drafted: Drafted, seconds: float) -> None:
        self.seconds += seconds
        self.num_passes += drafted.num_passes
        if not drafted.num_passes:
            return
        num_rows = len(wish.rows)
        if not drafted.num_behind:
            self._passes.learn(num_rows, seconds / drafted.num_passes)
        elif drafted.num_behind > NEAR:
            rest = max(0.0, seconds - drafted.num_passes * self._pass_seconds(num_rows))
            self._token_s = follow(self._token_s, rest / drafted.num_behind)

    def _best(self, able: list[Sequence], num_running: int, base_s: float, most: int) -> _Choice:
        """Returns the most tokens a second of a cycle, if that is worth it."""
        best = _Choice(rate=LEAST_GAIN * num_running / base_s)
        if not self._may_gain(len(able), num_running, base_s, most, best.rate):
            return best
        here = self._costs.beyond(num_running)
        expected = [0.0] * most  # accepted tokens of the sequences so far, by the length of drafts
        for num_rows, sequence in enumerate(able, 1):
            total = 0.0
            for at, survival in enumerate(self._survivals(sequence, most)):
                total += survival
                expected[at] += total
            if num_rows & (num_rows - 1) and num_rows != len(able):
                continue  # powers of two, and all
            pass_s = self._pass_seconds(num_rows)
            for count in range(1, min(most, self._most_tokens // num_rows) + 1):
                cycle_s = base_s + self._costs.beyond(num_running + num_rows * count) - here + count * pass_s
                rate = (num_running + expected[count - 1]) / cycle_s
                if rate > best.rate:
                    best = _Choice(num_rows, count, rate)
        return best

    def _may_gain(self, num_able: int, num_running: int, base_s: float, most: int, least: float) -> bool:
        """Returns whether drafts would be worth it if all of them were accepted."""
        here = self._costs.beyond(num_running)
        for num_rows in {1, num_able}:
            pass_s = self._pass_seconds(num_rows)
            for count in {1, most}:
                tokens = num_running + num_rows * count
                cycle_s = base_s + self._costs.beyond(tokens) - here + count * pass_s
                if tokens / cycle_s > least:
                    return True
        return False

    def _try(self, able: list[Sequence], base_s: float, num_tokens: int) -> None:
        """Drafts for the sequence that is least behind, if there is time for a trial."""
        sequence = min(able, key=self._behind)
        num_behind = max(0, self._behind(sequence) - NEAR)
        cost_s = num_tokens * (self._pass_seconds(1) + self._costs.beyond(2)) + num_behind * self._behind_seconds()
        self._credit_s = min(self._credit_s, 4.0 * cost_s)
        if self._credit_s >= cost_s and base_s:
            self._credit_s -= cost_s
            self._chosen, self._num_tokens, self._is_trial = [sequence], num_tokens, True

    def _is_worth_reading(self, sequence: Sequence, gain_s: float, mean_output: float) -> bool:
        """Returns whether the seconds that drafts save in the rest of the answer are more than reading what the model
        is behind. gain_s: saved for each token."""
        num_behind = self._behind(sequence)
        if num_behind <= NEAR + self._most_tokens_of_draft:
            return True
        num_left = min(sequence.stop_length - len(sequence.tokens), max(1.0, mean_output))
        return gain_s * num_left > num_behind * self._behind_seconds()

    def _has_better(self, sequence: Sequence) -> bool:
        """Returns whether a draft that costs nothing is expected to bring more tokens than the model's."""
        if not sequence.proposals:
            return False
        own = sum(self._survivals(sequence, self._num_tokens))
        return any(sum(self._rates.survivals(each, sequence.acceptance)) >= own for each in sequence.proposals)

    def _behind(self, sequence: Sequence) -> int:
        """Returns how many tokens the model would read before it drafts."""
        count = max(0, len(sequence.tokens) - (sequence.num_read or 0))
        return min(count, self._reach) if self._reach else count

    def _survivals(self, sequence: Sequence, count: int) -> list[float]:
        return self._rates.survivals(DraftTokens([0] * count, self._method, STRENGTH), sequence.acceptance)

    def _first_rate(self, sequence: Sequence) -> float:
        return self._survivals(sequence, 1)[0]

    def _pass_seconds(self, num_rows: int) -> float:
        return self._passes.seconds(num_rows) or self._share * self._pace.decode_seconds(num_rows)

    def _behind_seconds(self) -> float:
        """Returns the seconds of a token that a row is behind."""
        return self._token_s or self._share * (self._pace.token_s or self._pace.decode_seconds(1) / NEAR)

    def _most_behind(self, num_running: int) -> int:
        """Returns how many tokens that rows are behind may run before a step, so that the step still ends in time."""
        if not self._token_s:
            return FIRST_CATCH_UP
        target_s = self._pace.target_s or CATCH_UP_S
        room_s = max(target_s - self._pace.decode_seconds(num_running), target_s / 4)
        return max(FIRST_CATCH_UP // 4, int(room_s / self._token_s))


def _can_follow(sequence: Sequence) -> bool:
    """Returns whether all known tokens of a sequence will have run, and more than one may come."""
    is_whole = sequence.num_computed >= len(sequence.tokens) - 1
    return is_whole and sequence.num_read is not None and len(sequence.tokens) + 1 < sequence.stop_length
