"""Speculation: which drafts a step verifies, so that all requests together get the most tokens a second.

Each token of each draft has a probability that it and those before it are accepted, and makes the step longer. The
tokens of all requests compete: the most probable ones are taken, as many as maximise expected tokens a second. That
may be none. Nothing here changes what is generated.
"""

from dataclasses import dataclass, field

from appliance.engine.core.acceptance import AcceptanceRates
from appliance.engine.core.model_drafts import ModelDrafts
from appliance.engine.core.pace import Pace
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.step_costs import ExpertReads, StepCosts
from appliance.engine.messages import SpeculationCaps
from appliance.engine.speculation_messages import MethodStats, SpeculationStats
from appliance.engine.step import DraftTokens, DraftWish, StepPlan

PROBE_EVERY = 128  # steps: then more drafts are tried than seem to pay, as costs may have changed


@dataclass(slots=True)
class _MethodCounts:
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by position

    def count(self, num_drafts: int, num_accepted: int) -> None:
        self.drafts += 1
        self.draft_tokens += num_drafts
        self.accepted_tokens += num_accepted
        self.accepted_at += [0] * (num_drafts - len(self.accepted_at))
        for position in range(num_accepted):
            self.accepted_at[position] += 1


class Speculation:
    """Chooses the drafts of each step, and learns from what became of them. `most_tokens`: drafts of one step."""

    def __init__(self, caps: SpeculationCaps, most_tokens: int, pace: Pace, experts: ExpertReads | None = None) -> None:
        self.caps = caps
        self._most_tokens = most_tokens
        self._pace = pace
        self._rates = AcceptanceRates(caps.model_method)
        self._costs = StepCosts(experts)
        self.models = None
        if caps.model_method is not None:
            self.models = ModelDrafts(caps, most_tokens, pace, self._rates, self._costs)
        self._counts: dict[str, _MethodCounts] = {}
        self._steps = {"verified": 0, "no_proposal": 0, "not_worth_it": 0, "off_by_load": 0, "off": 0}
        self._since_probe = 0

    def most_drafts(self, num_decodes: int) -> int:
        """Returns how long a draft may be that is looked up within the step, for a row of the next one; 0 if none is
        wanted."""
        caps = self.caps
        if not caps.looks_up or not self._is_on(num_decodes):
            return 0
        if caps.adaptive and not self._may_gain(num_decodes) and self._since_probe < PROBE_EVERY:
            return 0
        return min(caps.num_tokens, self._most_tokens)

    def decide(self, running: list[Sequence], mean_output: float) -> bool:
        """Returns whether a model drafts before the next step. running: of the step that was just planned."""
        if self.models is None:
            return False
        if self._is_on(len(running)):
            self._presume()
            self.models.decide(self.caps, running, mean_output)
        return self.models.is_due

    def wish(self, running: list[Sequence]) -> DraftWish | None:
        """Returns what a model is to draft now; None if nothing."""
        if self.models is None or not self.models.is_due:
            return None
        wish, is_trial = self.models.wish(running)
        if is_trial:
            self._since_probe = PROBE_EVERY  # so that some of it is verified, whatever it seems to be worth
        return wish

    def choose(self, decodes: list[Sequence], most_tokens: int) -> None:
        """Gives each of the sequences, all those that decode in this step, the draft to verify, if any. `most_tokens`:
        as many drafts can be held."""
        self._since_probe += bool(decodes)
        offered = [sequence for sequence in decodes if sequence.proposals]
        if not offered or not self.caps.enabled:
            self._note_none(len(decodes), is_offered=False)
            for sequence in offered:
                sequence.proposals = []
            return
        slots: list[tuple[float, int]] = []
        best: list[DraftTokens] = []
        for at, sequence in enumerate(offered):
            draft, survivals = self._best(sequence)
            best.append(draft)
            slots += [(-survival, at) for survival in survivals]
        slots.sort()
        count = self._num_worth(slots, len(decodes))
        count = min(count, self._most_tokens, most_tokens)
        taken = [0] * len(offered)
        for _, at in slots[:count]:
            taken[at] += 1
        for sequence, draft, num_taken in zip(offered, best, taken, strict=True):
            sequence.proposals = []
            if num_taken:
                sequence.draft = draft.cut(num_taken)
            else:
                self._rates.not_tried(draft, sequence.acceptance)
        if count:
            self._steps["verified"] += 1
        else:
            self._note_none(len(decodes), is_offered=True)

    def verified(self, sequence: Sequence, draft: DraftTokens, num_accepted: int) -> None:
        """Takes note that the first `num_accepted` tokens of a sequence's draft were accepted."""
        self._rates.verified(draft, num_accepted, sequence.acceptance)
        self._counts.setdefault(draft.method, _MethodCounts()).count(len(draft.token_ids), num_accepted)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Learns the cost of a step that verified drafts and ran no prompt."""
        num_sequences = len(plan.chunks)
        decode_s = self._pace.decode_seconds(num_sequences)
        if decode_s:
            self._presume()
            self._costs.learn(num_sequences, plan.num_tokens, seconds, decode_s)

    def _is_on(self, num_decodes: int) -> bool:
        most = self.caps.disable_by_batch_size
        return self.caps.enabled and (most is None or num_decodes <= most)

    def stats(self) -> SpeculationStats:
        methods = {
            name: MethodStats(each.drafts, each.draft_tokens, each.accepted_tokens, tuple(each.accepted_at))
            for name, each in self._counts.items()
        }
        models = self.models
        if models is None:
            return SpeculationStats(methods=methods, steps=dict(self._steps))
        spent = models.times.seconds, models.times.num_passes
        return SpeculationStats(methods=methods, steps=dict(self._steps), drafting_s=spent[0], num_passes=spent[1])

    def _best(self, sequence: Sequence) -> tuple[DraftTokens, list[float]]:
        """Returns the proposal of which most tokens are expected to be accepted, cut to the longest that may be."""
        most, found = self.caps.num_tokens, []
        for draft in sequence.proposals:
            draft = draft.cut(min(most, len(draft.token_ids)))
            survivals = self._rates.survivals(draft, sequence.acceptance)
            found.append((sum(survivals), draft, survivals))
        _, draft, survivals = max(found, key=lambda each: each[0])
        return draft, survivals

    def _num_worth(self, slots: list[tuple[float, int]], num_decodes: int) -> int:
        """Returns how many of the slots, which are sorted by falling probability, maximise expected tokens a second."""
        if not self.caps.adaptive:
            return len(slots)
        base_s = self._pace.decode_seconds(num_decodes)
        if not base_s:
            return 0  # a decode without drafts is measured first
        self._presume()
        here = self._costs.beyond(num_decodes)
        expected, count, best = float(num_decodes), 0, num_decodes / base_s
        for number, (minus_survival, _) in enumerate(slots[: self._most_tokens], 1):
            expected -= minus_survival
            rate = expected / (base_s + self._costs.beyond(num_decodes + number) - here)
            if rate > best:
                count, best = number, rate
        if self._since_probe < PROBE_EVERY:
            return count
        self._since_probe = 0
        return min(2 * count + 1, len(slots))

    def _may_gain(self, num_decodes: int) -> bool:
        """Returns whether any number of drafts would gain something if all of them were accepted."""
        base_s = self._pace.decode_seconds(num_decodes)
        if not base_s or not num_decodes:
            return True
        self._presume()
        here = self._costs.beyond(num_decodes)
        counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= self._most_tokens]
        return any(self._costs.beyond(num_decodes + count) - here < base_s * count / num_decodes for count in counts)

    def _presume(self) -> None:
        self._costs.presume(self._pace.decode_seconds(1), self._pace.token_s)

    def _note_none(self, num_decodes: int, *, is_offered: bool) -> None:
        """Counts why a step with decodes verifies nothing."""
        if not num_decodes:
            return
        if not self.caps.enabled:
            reason = "off"
        elif is_offered:
            reason = "not_worth_it"
        elif not self.caps.looks_up:
            reason = "not_worth_it" if self._is_on(num_decodes) else "off_by_load"
        else:
            reason = "no_proposal" if self.most_drafts(num_decodes) else "off_by_load"
        self._steps[reason] += 1
