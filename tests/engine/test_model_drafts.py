"""Whether a draft model drafts: only where a cycle of drafting and verifying gives more tokens a second."""

import msgspec
import pytest

from appliance.engine.core.model_drafts import TRIAL_SHARE
from appliance.engine.core.pace import DecodeCount, Pace
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.speculation import Speculation
from appliance.engine.messages import SpeculationCaps
from appliance.engine.step import Chunk, Drafted, DraftTokens, StepPlan

from .test_draft_choice import MS, sequences

BASE_MS = 10.0


class Machine:
    """A decode takes BASE_MS, and `each` more for every token beyond one of a sequence; a pass of the draft model takes
    `draft`. Time goes on by what is done."""

    def __init__(self, draft: float, each: float = 0.5, **caps: object) -> None:
        self.draft_ms, self.each = draft, each
        self.pace = Pace(None)
        values: dict[str, object] = {
            "num_tokens": 8, "looks_up": False, "model_method": "draft_model", "model_share": 0.3,
        }  # fmt: skip
        self.speculation = Speculation(SpeculationCaps(**(values | caps)), 64, self.pace)  # type: ignore[arg-type]
        self.now = self.drafting = 0.0
        self.num_tokens = 0

    def cycle(self, running: list[Sequence], num_right: int) -> int:
        """Drafts, verifies and decides; returns how many tokens were drafted. A draft's first `num_right` are right."""
        wish = self.speculation.wish(running)
        num_drafted = 0
        if wish is not None:
            num_behind = sum(
                max(0, len(each.tokens) - (each.num_read or 0)) for each in running if each.row in wish.rows
            )
            seconds = MS * (wish.num_tokens * self.draft_ms + max(0, num_behind - 4 * len(wish.rows)))
            drafted = Drafted(
                num_passes=wish.num_tokens, num_behind=num_behind if num_behind > 4 * len(wish.rows) else 0
            )
            models = self.speculation.models
            assert models is not None
            models.times.learn(wish, drafted, seconds)
            for each in running:
                if each.row in wish.rows:
                    each.num_read = len(each.tokens)
                    each.proposals = [models.offered(each, DraftTokens([1] * wish.num_tokens, "draft_model"))]
            self.now, self.drafting = self.now + seconds, self.drafting + seconds
            num_drafted = wish.num_tokens * len(wish.rows)
        self._step(running, num_right)
        self.speculation.decide(running, 100.0)
        return num_drafted

    def _step(self, running: list[Sequence], num_right: int) -> None:
        self.speculation.choose(running, 1000)
        chunks = []
        for each in running:
            draft, each.draft = each.draft, None
            length = 1 + (0 if draft is None else len(draft.token_ids))
            chunks.append(Chunk(0, 0, length, 0, (), sample=True, is_decode=True, draft=draft))
            self.num_tokens += 1
            if draft is not None:
                self.speculation.verified(each, draft, min(num_right, len(draft.token_ids)))
                self.num_tokens += min(num_right, len(draft.token_ids))
        num_tokens = sum(chunk.length for chunk in chunks)
        seconds = MS * (BASE_MS + self.each * (num_tokens - len(running)))
        self.now += seconds
        has_drafts = num_tokens > len(running)
        self.pace.learn(DecodeCount(len(running), 0), 0, seconds, verifies=has_drafts)
        if has_drafts:
            self.speculation.learn(StepPlan(1, (), (), (), tuple(chunks), num_tokens), seconds)


def running(count: int, num_tokens: int = 3) -> list[Sequence]:
    found = sequences(count)
    for row, each in enumerate(found):
        each.row, each.has_run_prompt, each.stop_length = row, True, 10_000
        each.tokens = [1] * num_tokens
        each.num_computed = num_tokens
    return found


def run(machine: Machine, of: list[Sequence], num_right: int, cycles: int = 400) -> list[int]:
    return [machine.cycle(of, num_right) for _ in range(cycles)]


def test_a_cheap_model_that_is_right_drafts_much() -> None:
    machine = Machine(draft=1.0)
    drafted = run(machine, running(1), num_right=8)
    assert drafted[-1] >= 6
    assert machine.num_tokens / machine.now > 3 / (MS * BASE_MS), "three times the tokens a second"


@pytest.mark.parametrize(("draft", "num_right"), [(1.0, 0), (9.0, 1), (12.0, 8)], ids=["wrong", "dear", "dearest"])
@pytest.mark.parametrize("count", [1, 16])
def test_a_model_that_does_not_pay_is_left_alone(draft: float, num_right: int, count: int) -> None:
    """All that is lost are the first drafts, and trials."""
    machine = Machine(draft=draft, each=1.0)
    of = running(count)
    run(machine, of, num_right, cycles=300)
    machine.now = machine.num_tokens = 0
    drafted = run(machine, of, num_right, cycles=2000)
    assert machine.num_tokens / machine.now >= 0.985 * count / (MS * BASE_MS)
    assert 0 < sum(drafted) < 200, "it is tried again now and then"


@pytest.mark.parametrize("after_good_ones", [False, True])
@pytest.mark.parametrize(("draft", "each", "count"), [(1.0, 0.5, 8), (3.0, 1.0, 8), (3.0, 1.0, 16), (4.0, 1.0, 16)])
def test_many_short_answers_lose_little_before_it_is_known_that_drafts_are_wrong(
    draft: float, each: float, count: int, after_good_ones: bool
) -> None:
    """A few begin, and the prompts of the others are not read. All prompts would take a quarter of the time here."""
    machine = Machine(draft=draft, each=each)
    if after_good_ones:
        run(machine, running(1), 8, cycles=60)
    machine.now = machine.num_tokens = 0
    drafted = run(machine, running(count, num_tokens=40), 0, cycles=128)
    assert machine.num_tokens / machine.now >= 0.92 * count / (MS * BASE_MS)
    assert sum(drafted) <= 40


def test_requests_that_keep_what_was_presumed_let_others_begin_at_once() -> None:
    machine = Machine(draft=1.0)
    run(machine, running(8, num_tokens=40), 8, cycles=60)
    drafted = run(machine, running(8, num_tokens=40), 8, cycles=3)
    assert drafted[-1] >= 8 * 2


def test_an_only_request_after_good_ones_drafts_as_much_at_once() -> None:
    machine = Machine(draft=1.0)
    assert max(run(machine, running(1), 8, cycles=4)) == 2, "nothing is known yet"
    run(machine, running(1), 8, cycles=60)
    assert run(machine, running(1), 8, cycles=2)[-1] >= 6


def test_a_wild_request_is_presumed_to_be_unlike_the_others() -> None:
    """Its drafts are counted apart, so that they do not spoil what is known of calm ones."""
    machine = Machine(draft=3.0)
    run(machine, running(1), 8, cycles=60)
    for wild in (running(1)[0] for _ in range(4)):
        message = wild.request.message
        sampling = msgspec.structs.replace(message.sampling, temperature=1.5)
        wild.request.message = msgspec.structs.replace(message, sampling=sampling)
        run(machine, [wild], 0, cycles=60)
    assert sum(run(machine, running(1), 8, cycles=8)) >= 2 * 4 + 3 * 6


def test_trials_take_a_bounded_share_of_the_time() -> None:
    machine = Machine(draft=20.0)
    of = running(1)
    run(machine, of, 0, cycles=200)
    machine.now = machine.drafting = 0.0
    run(machine, of, 0, cycles=4000)
    assert 0 < machine.drafting <= 1.5 * TRIAL_SHARE * machine.now


def test_what_pays_again_is_found_again() -> None:
    machine = Machine(draft=1.0)
    of = running(1)
    run(machine, of, 0, cycles=500)
    assert sum(run(machine, of, 8, cycles=3000)[-20:]) > 40


def test_rows_that_are_far_behind_are_not_read_for_short_answers() -> None:
    """Reading 400 tokens takes 400 ms here, which the drafts of an answer of a few tokens do not save."""
    machine = Machine(draft=1.0)
    run(machine, running(1), num_right=8, cycles=50)
    long = running(1, num_tokens=400)
    machine.cycle(long, 8)
    long[0].num_read, long[0].stop_length = 0, 410
    machine.speculation.decide(long, 5.0)
    assert machine.speculation.wish(long) is None
    long[0].num_read, long[0].stop_length = 0, 4000
    machine.speculation.decide(long, 2000.0)
    assert machine.speculation.wish(long) is not None


def test_it_is_off_by_load_and_by_the_spec() -> None:
    for caps in ({"enabled": False}, {"disable_by_batch_size": 1}):
        machine = Machine(draft=0.1, **caps)
        assert sum(run(machine, running(2), 8, cycles=50)) == 0


def test_a_draft_that_costs_nothing_and_promises_more_is_taken_instead() -> None:
    machine = Machine(draft=1.0, looks_up=True)
    of = running(1)
    run(machine, of, 8, cycles=40)
    machine.speculation.decide(of, 100.0)
    of[0].proposals = [DraftTokens([1] * 60, "suffix", 3)]
    assert machine.speculation.wish(of) is None
    machine.speculation.decide(of, 100.0)
    of[0].proposals = [DraftTokens([1], "suffix", 0)]
    assert machine.speculation.wish(of) is not None
