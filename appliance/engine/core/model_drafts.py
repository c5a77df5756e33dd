"""Drafts of a model: whether it drafts before the next step, for which rows, and how many tokens.

A drafting model takes time, so it is decided before it runs: as many tokens as maximise those of the cycle of drafting
and verifying by its seconds, from measured times and acceptance. It may be none. What seems not to pay is tried again
now and then, for at most TRIAL_SHARE of the time.

What is known of other requests may not hold for a new one, and prompts that were read in vain cost most. So drafts
begin for one request that has shown nothing yet, and for more at once as requests keep what was presumed of them. Where
drafts for so few do not pay by themselves, and would for all, LEARNING_SHARE of the time is spent to find out.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from appliance.engine.core.acceptance import AcceptanceRates, Kind
from appliance.engine.core.model_times import NEAR, ModelTimes
from appliance.engine.core.pace import Pace
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.step_costs import StepCosts
from appliance.engine.messages import SpeculationCaps
from appliance.engine.step import DraftTokens, DraftWish

STRENGTH = 2  # the class of a model's drafts: before any was verified, four of five are presumed to be accepted
WILD_STRENGTH = 1  # of requests above WILD_TEMPERATURE, whose drafts are right less often: two of three are presumed
WILD_TEMPERATURE = 1.0
LEAST_GAIN = 1.02  # a cycle with drafts must promise so many times the tokens a second
TRIAL_SHARE = 0.005  # of the time, for drafts that seem not to pay
TRIAL_TOKENS = 2
LEARNING_SHARE = 0.02  # of the time, for drafts that do not pay themselves, and show whether more of them would
MOST_LEARNING = 4.0  # steps: the time that is there for it at first, and at most


class _Choice(NamedTuple):
    """The first sequences of those offered, and how many tokens to draft for each; `rate`: tokens a second then."""

    num_rows: int = 0
    num_tokens: int = 0
    rate: float = 0.0


class _Cycle(NamedTuple):
    """A step of so many sequences, which takes `base_s` without drafts. most: tokens of a draft."""

    num_running: int
    base_s: float
    most: int


class ModelDrafts:
    """Decides what the drafting model does."""

    def __init__(
        self, caps: SpeculationCaps, most_tokens: int, pace: Pace, rates: AcceptanceRates, costs: StepCosts
    ) -> None:
        self.times = ModelTimes(caps.model_share, pace)
        self._method = caps.model_method or ""
        self._reach = caps.model_reach
        self._most_tokens = most_tokens
        self._pace = pace
        self._rates = rates
        self._costs = costs
        self._credit_s = 0.0  # for trials
        self._learning_s: float | None = None
        self._is_trial = False
        self._chosen: list[Sequence] = []
        self._num_tokens = 0

    @property
    def is_due(self) -> bool:
        """The model drafts before the next step."""
        return bool(self._chosen)

    def decide(self, caps: SpeculationCaps, running: list[Sequence], mean_output: float) -> None:
        """Decides about the next draft, of the sequences whose known tokens will all have run. It is called when a step
        was planned, in which they run."""
        self._chosen, self._is_trial = [], False
        able = [each for each in running if _can_follow(each)]
        most = min(caps.num_tokens, self._most_tokens, caps.model_tokens or self._most_tokens)
        if not caps.adaptive:
            self._chosen, self._num_tokens = able[: self._most_tokens // most], most
            return
        base_s = self._pace.decode_seconds(len(running))
        if not base_s or not able:
            return  # a decode without drafts is measured first
        able.sort(key=self._first_rate, reverse=True)
        self._credit_s += TRIAL_SHARE * base_s
        left_s = MOST_LEARNING * base_s if self._learning_s is None else self._learning_s + LEARNING_SHARE * base_s
        self._learning_s = min(left_s, MOST_LEARNING * base_s)
        cycle = _Cycle(len(running), base_s, most)
        self._choose(able, cycle, mean_output)
        if not self._chosen:
            self._try(able, cycle)

    def wish(self, running: Iterable[Sequence]) -> tuple[DraftWish | None, bool]:
        """Returns what was decided, for the sequences that still run, and whether it is a trial."""
        alive = {id(each) for each in running}
        chosen = [each for each in self._chosen if id(each) in alive and each.has_run_prompt and _can_follow(each)]
        self._chosen = []
        rows = tuple(each.row for each in chosen if not self._has_better(each))
        if not rows:
            return None, False
        return DraftWish(rows, self._num_tokens, self.times.most_behind(len(alive))), self._is_trial

    def offered(self, sequence: Sequence, draft: DraftTokens) -> DraftTokens:
        """Returns a draft of the model for a sequence, with the class by which its acceptance is known."""
        return msgspec.structs.replace(draft, strength=_strength(sequence))

    def _choose(self, able: list[Sequence], cycle: _Cycle, mean_output: float) -> None:
        """Chooses the sequences for which drafts pay, and those that are to show whether they do."""
        best = self._best(able, cycle)
        gain_s = cycle.base_s / cycle.num_running - 1.0 / best.rate
        worth = [
            each for each in able[: best.num_rows] if self._is_worth_reading(each, gain_s, mean_output, cycle.most)
        ]
        begun, has_shown = self._begun(worth)
        if len(begun) < best.num_rows:
            alone = self._best(begun, cycle)
            if alone.num_rows:
                begun = begun[: alone.num_rows]
                best = alone
            elif len(begun) == len(worth) or not self._may_learn(begun, cycle.num_running):
                begun = []
        self._chosen, self._is_trial = begun, not has_shown
        self._num_tokens = best.num_tokens if has_shown else min(best.num_tokens, TRIAL_TOKENS)

    def _begun(self, sequences: list[Sequence]) -> tuple[list[Sequence], bool]:
        """Returns those of the sequences that have shown how often drafts of them are right, and as many of the others
        as may begin; and whether any has, or is alone and follows others that kept what was presumed of them."""
        shown: list[Sequence] = []
        others: list[Sequence] = []
        for each in sequences:
            has_shown = self._rates.has_shown(self._kind(each), each.acceptance)
            (shown if has_shown else others).append(each)
        others.sort(key=self._behind)
        trust = max((self._rates.trust(self._kind(each)) for each in others), default=0)
        return shown + others[:trust], bool(shown) or (trust > 1 and len(sequences) == 1)

    def _may_learn(self, sequences: list[Sequence], num_running: int) -> bool:
        """Returns whether there is time to draft for sequences to learn from it; takes the time."""
        cost_s = TRIAL_TOKENS * (self.times.of_pass(len(sequences)) + self._costs.beyond(1 + len(sequences)))
        cost_s += self._reading_seconds(sequences, num_running)
        if self._learning_s is None or cost_s > self._learning_s:
            return False
        self._learning_s -= cost_s
        return True

    def _best(self, able: list[Sequence], cycle: _Cycle) -> _Choice:
        """Returns the most tokens a second of a cycle, if that is worth it."""
        num_running, base_s, most = cycle
        best = _Choice(rate=LEAST_GAIN * num_running / base_s)
        if not able or not self._may_gain(len(able), cycle, best.rate):
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
            pass_s = self.times.of_pass(num_rows)
            for count in range(1, min(most, self._most_tokens // num_rows) + 1):
                cycle_s = base_s + self._costs.beyond(num_running + num_rows * count) - here + count * pass_s
                rate = (num_running + expected[count - 1]) / cycle_s
                if rate > best.rate:
                    best = _Choice(num_rows, count, rate)
        return best

    def _may_gain(self, num_able: int, cycle: _Cycle, least: float) -> bool:
        """Returns whether drafts would be worth it if all of them were accepted."""
        here = self._costs.beyond(cycle.num_running)
        for num_rows in {1, num_able}:
            pass_s = self.times.of_pass(num_rows)
            for count in {1, cycle.most}:
                tokens = cycle.num_running + num_rows * count
                cycle_s = cycle.base_s + self._costs.beyond(tokens) - here + count * pass_s
                if tokens / cycle_s > least:
                    return True
        return False

    def _try(self, able: list[Sequence], cycle: _Cycle) -> None:
        """Drafts for the sequence that is least behind, if there is time for a trial."""
        sequence, num_tokens = min(able, key=self._behind), min(cycle.most, TRIAL_TOKENS)
        cost_s = num_tokens * (self.times.of_pass(1) + self._costs.beyond(2))
        cost_s += self._reading_seconds([sequence], cycle.num_running)
        self._credit_s = min(self._credit_s, 4.0 * cost_s)
        if self._credit_s >= cost_s:
            self._credit_s -= cost_s
            self._chosen, self._num_tokens, self._is_trial = [sequence], num_tokens, True

    def _is_worth_reading(self, sequence: Sequence, gain_s: float, mean_output: float, near: int) -> bool:
        """Returns whether the seconds that drafts save in the rest of the answer are more than reading what the model
        is behind. gain_s: saved for each token. near: tokens that are read in any case."""
        num_behind = self._behind(sequence)
        if num_behind <= near:
            return True
        num_left = min(sequence.stop_length - len(sequence.tokens), max(1.0, mean_output))
        return gain_s * num_left > self.times.of_reading(num_behind)

    def _reading_seconds(self, sequences: list[Sequence], num_running: int) -> float:
        """Returns the seconds to read what the sequences are behind, as far as that runs before the next step. The rest
        is read before later steps, and is counted then."""
        num_behind = sum(max(0, self._behind(each) - NEAR) for each in sequences)
        return self.times.of_reading(min(num_behind, self.times.most_behind(num_running)))

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

    def _kind(self, sequence: Sequence) -> Kind:
        return self._method, _strength(sequence)

    def _survivals(self, sequence: Sequence, count: int) -> list[float]:
        return self._rates.survivals(DraftTokens([0] * count, *self._kind(sequence)), sequence.acceptance)

    def _first_rate(self, sequence: Sequence) -> float:
        return self._survivals(sequence, 1)[0]


def _strength(sequence: Sequence) -> int:
    return STRENGTH if sequence.request.message.sampling.temperature <= WILD_TEMPERATURE else WILD_STRENGTH


def _can_follow(sequence: Sequence) -> bool:
    """Returns whether all known tokens of a sequence will have run, and more than one may come."""
    is_whole = sequence.num_computed >= len(sequence.tokens) - 1
    return is_whole and sequence.num_read is not None and len(sequence.tokens) + 1 < sequence.stop_length
