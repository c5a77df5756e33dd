"""How many drafts a step verifies: as many as give the most tokens a second, which may be none."""

import pytest

from appliance.engine.core.acceptance import AcceptanceRates
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.pace import DecodeCount, Pace
from appliance.engine.core.policy import POLICIES
from appliance.engine.core.requests import RequestFactory
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.speculation import PROBE_EVERY, Speculation
from appliance.engine.core.step_costs import ExpertReads, StepCosts
from appliance.engine.messages import SpeculationCaps
from appliance.engine.step import Chunk, DraftTokens, StepPlan

from .simulator import generate

MS = 0.001


class Machine:
    """A machine on which a step takes `fixed` milliseconds, and `each` more for every token beyond `free` ones."""

    def __init__(self, fixed: float = 10.0, each: float = 1.0, free: int = 1, **caps: object) -> None:
        self._fixed, self._each, self._free = fixed, each, free
        self.pace = Pace(None)
        values: dict[str, object] = {"num_tokens": 8}
        self.caps = SpeculationCaps(**(values | caps))  # type: ignore[arg-type] # free keywords
        self.speculation = Speculation(self.caps, 64, self.pace)

    def seconds(self, num_tokens: int) -> float:
        return MS * (self._fixed + self._each * max(0, num_tokens - self._free))

    def decode(self, *counts: int) -> "Machine":
        """Runs decodes without drafts."""
        for count in counts:
            for _ in range(20):
                self.pace.learn(DecodeCount(count, 0), 0, self.seconds(count))
        return self

    def step(self, sequences: list[Sequence], num_right: int) -> int:
        """Proposes eight drafts of each, of which `num_right` are right; returns how many tokens the step verified."""
        for sequence in sequences:
            sequence.proposals = [DraftTokens([1] * 8, "m")] if self.speculation.most_drafts(len(sequences)) else []
        self.speculation.choose(sequences, 1000)
        chunks, drafts = [], []
        for sequence in sequences:
            draft, sequence.draft = sequence.draft, None
            length = 1 + (0 if draft is None else len(draft.token_ids))
            chunks.append(Chunk(0, 0, length, 0, (), sample=True, is_decode=True, draft=draft))
            if draft is not None:
                drafts.append(len(draft.token_ids))
                self.speculation.verified(sequence, draft, min(num_right, len(draft.token_ids)))
        num_tokens = sum(chunk.length for chunk in chunks)
        plan = StepPlan(1, (), (), (), tuple(chunks), num_tokens)
        if drafts:
            self.speculation.learn(plan, self.seconds(num_tokens))
        return sum(drafts)


def sequences(count: int) -> list[Sequence]:
    config = SchedulerConfig(
        max_model_len=64, block_size=4, num_blocks=64, max_num_seqs=64, max_num_batched_tokens=64, max_num_sampled=64
    )
    factory = RequestFactory(config, POLICIES["fcfs"])
    return [factory.create(b"", generate(f"r{at}", [1, 2, 3], 9)).sequences[0] for at in range(count)]


def run(machine: Machine, count: int, num_right: int, steps: int = 60) -> list[int]:
    every = sequences(count)
    return [machine.step(every, num_right) for _ in range(steps)]


def test_right_drafts_are_all_taken_where_tokens_are_cheap() -> None:
    assert run(Machine(each=0.5).decode(1), 1, 8)[-10:] == [8] * 10


def test_wrong_drafts_are_soon_left_out() -> None:
    taken = run(Machine(each=1.0).decode(1), 1, 0, steps=300)
    assert sum(taken[:20]) > 0
    assert sum(count > 0 for count in taken[100:]) <= 10, "tried again now and then"
    steps = 10.0 * len(taken) + 1.0 * sum(taken)
    assert 10.0 * len(taken) / steps > 0.98, "what it lost in all"


def test_as_many_are_taken_as_are_accepted() -> None:
    taken = run(Machine(each=0.6).decode(1), 1, 3, steps=200)
    assert 2 <= sum(taken[-50:]) / 50 <= 4


def test_under_load_that_computes_all_the_time_nothing_is_proposed() -> None:
    """Each token costs what a sequence does: even a draft that is surely right gains nothing."""
    machine = Machine(fixed=10.0, each=1.0, free=10).decode(1, 64)
    machine.pace.learn(DecodeCount(0, 0), 1000, 1.05)
    assert machine.speculation.most_drafts(64) == 0
    assert machine.speculation.most_drafts(1) == 8
    run(machine, 64, 8, steps=20)
    assert machine.speculation.stats().steps["off_by_load"] == 20


def test_the_requests_of_a_step_compete() -> None:
    machine = Machine(fixed=10.0, each=0.9).decode(1, 2)
    good, bad = sequences(2)
    for _ in range(30):
        machine.speculation.verified(good, DraftTokens([1] * 8, "m"), 8)
        machine.speculation.verified(bad, DraftTokens([1] * 8, "m"), 0)
    good.proposals = [DraftTokens([1] * 8, "m")]
    bad.proposals = [DraftTokens([2] * 8, "m")]
    machine.speculation.choose([good, bad], 1000)
    assert good.draft is not None
    assert bad.draft is None


def test_nothing_is_verified_before_a_decode_was_measured() -> None:
    assert run(Machine(), 1, 8, steps=3) == [0, 0, 0]


def test_the_settings_that_change_live() -> None:
    machine = Machine(each=0.1, adaptive=False).decode(1)
    assert run(machine, 1, 0, steps=3) == [8, 8, 8], "all, whatever becomes of them"
    machine.speculation.caps = SpeculationCaps(num_tokens=3, adaptive=False)
    assert run(machine, 1, 0, steps=1) == [3]
    machine.speculation.caps = SpeculationCaps(num_tokens=3, enabled=False)
    assert run(machine, 1, 8, steps=2) == [0, 0]
    assert machine.speculation.stats().steps["off"] == 2
    machine.speculation.caps = SpeculationCaps(num_tokens=3, disable_by_batch_size=2)
    assert [machine.speculation.most_drafts(count) for count in (1, 2, 3)] == [3, 3, 0]


def test_costs_that_changed_are_tried_again() -> None:
    machine = Machine(fixed=10.0, each=30.0).decode(1)
    run(machine, 1, 8, steps=10)
    machine._each = 0.1
    assert sum(run(machine, 1, 8, steps=8 * PROBE_EVERY)[-PROBE_EVERY:]) > 4 * PROBE_EVERY


def test_rates_are_learnt_by_position_and_begin_for_a_request_with_those_of_all() -> None:
    rates, draft = AcceptanceRates(), DraftTokens([1] * 4, "m", 1)
    for _ in range(200):
        rates.verified(draft, 2, {})
    survivals = rates.survivals(draft, None)
    assert survivals[1] > 0.9
    assert survivals[2] < 0.1
    own: dict[tuple[str, int], list[float]] = {}
    rates.verified(draft, 0, own)
    assert rates.survivals(draft, own)[0] < 0.9 < rates.survivals(draft, None)[0]
    assert rates.survivals(DraftTokens([1], "other"), own) == [0.5]


def test_costs_between_measured_sizes_and_beyond() -> None:
    costs = StepCosts()
    costs.presume(0.010, 0.002)
    assert costs.beyond(1) == 0.0
    assert costs.beyond(4) == pytest.approx(0.006)
    for _ in range(50):
        costs.learn(1, 5, 0.014, 0.010)
    assert costs.beyond(5) == pytest.approx(0.004)
    assert costs.beyond(3) == pytest.approx(0.002)
    assert costs.beyond(7) == pytest.approx(0.008), "what is presumed, from there on"


def test_a_large_step_that_was_measured_once_does_not_hide_what_smaller_ones_cost() -> None:
    """It seemed quick, as a first measurement counts as little as it may be."""
    costs = StepCosts()
    costs.presume(0.010, 0.0001)
    costs.learn(16, 64, 0.012, 0.010)
    for _ in range(40):
        costs.learn(16, 32, 0.026, 0.010)
    assert costs.beyond(32) - costs.beyond(16) > 0.014


def test_experts_cost_by_how_many_distinct_ones_are_expected() -> None:
    """128 experts of which a token chooses 8: four tokens read 29 of them, eight read 52."""
    reads = ExpertReads(128, 8, share=0.8)
    assert [round((reads.growth(count) / 0.8 + 1) * 8) for count in (1, 4, 8)] == [8, 29, 52]
    costs = StepCosts(reads)
    costs.presume(0.010, 0.0001)
    assert costs.beyond(4) == pytest.approx(0.010 * reads.growth(4))
