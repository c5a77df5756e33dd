"""The cost model of steps, on a simulated machine: time is an argument."""

import random

import msgspec
import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.gaps import WINDOW, LateGaps
from appliance.engine.core.pace import FIRST_TOKENS, LATE_S, MIN_TOKENS, Backlog, Decodes, Pace
from appliance.engine.core.scheduler import Scheduler

from .simulator import Harness, generate


def machine(decodes: int, prompt_tokens: int) -> float:
    """Reads weights once; then each token costs, a prompt's less than its own pass would."""
    return 0.020 + 0.001 * decodes + 0.004 * prompt_tokens


def read(count: int) -> Decodes:
    return Decodes(count, count)


def test_nothing_is_bounded_without_a_target() -> None:
    untargeted = Pace(None)
    assert untargeted.prompt_tokens(read(3)) is None
    untargeted.learn(read(0), 512, machine(0, 512))
    assert untargeted.prompt_tokens(read(3)) is None


def test_the_first_step_is_small_and_those_without_decodes_are_longer() -> None:
    pace = Pace(0.2)
    assert pace.prompt_tokens(read(0)) == pace.prompt_tokens(read(3)) == FIRST_TOKENS
    pace.learn(read(0), FIRST_TOKENS, 0.64)
    assert pace.prompt_tokens(read(0)) == 80
    assert pace.prompt_tokens(read(1)) == 20


def test_a_cold_first_step_is_soon_forgotten() -> None:
    pace = Pace(0.2)
    pace.learn(read(0), FIRST_TOKENS, 10 * machine(0, FIRST_TOKENS))
    for _ in range(8):
        tokens = pace.prompt_tokens(read(1))
        assert tokens is not None
        pace.learn(read(1), tokens, machine(1, tokens))
    assert machine(1, pace.prompt_tokens(read(1)) or 0) == pytest.approx(0.2, rel=0.15)


def test_steps_come_to_last_the_target() -> None:
    pace = Pace(0.2)
    pace.learn(read(0), 512, machine(0, 512))
    for _ in range(20):
        pace.learn(read(8), 0, machine(8, 0))
    for _ in range(20):
        tokens = pace.prompt_tokens(read(8))
        assert tokens is not None
        seconds = machine(8, tokens)
        pace.learn(read(8), tokens, seconds)
    assert seconds == pytest.approx(0.2, rel=0.05)


def test_a_step_that_was_held_up_changes_little() -> None:
    pace = Pace(0.2)
    for _ in range(10):
        pace.learn(read(1), 0, machine(1, 0))
        pace.learn(read(1), 40, machine(1, 40))
    before = pace.prompt_tokens(read(1))
    pace.learn(read(1), 40, 100 * machine(1, 40))
    after = pace.prompt_tokens(read(1))
    assert before is not None
    assert after is not None
    assert before * 0.75 <= after <= before


def test_prompts_go_on_when_decodes_alone_miss_the_target() -> None:
    pace = Pace(0.1)
    for _ in range(10):
        pace.learn(read(64), 0, 0.4)
        pace.learn(read(0), 100, 0.1)
    assert pace.prompt_tokens(read(64)) == pytest.approx(0.25 * 0.4 / 0.001, abs=1)
    for _ in range(30):
        pace.learn(read(64), 0, 0.00001)
        pace.learn(read(0), 100, 1000.0)  # bounded a step, so it takes many
    assert pace.prompt_tokens(read(64)) == MIN_TOKENS


def test_decodes_are_known_by_their_number_and_on_lines_between() -> None:
    pace = Pace(0.2)
    assert pace.decode_seconds(3) == 0.0
    pace.learn(read(2), 0, 0.01)
    pace.learn(read(60), 0, 0.1)
    seen = [pace.decode_seconds(count) for count in (0, 1, 2, 31, 60, 500)]
    assert seen == pytest.approx([0.0, 0.005, 0.01, 0.055, 0.1, 0.1])


def test_a_step_that_nobody_reads_may_be_longer_and_one_reader_ends_that() -> None:
    pace = known(Pace(0.2, 0.04))
    unread, one = pace.prompt_tokens(Decodes(8, 0)), pace.prompt_tokens(Decodes(8, 1))
    assert machine(8, unread or 0) == pytest.approx(0.8, rel=0.05)
    assert one == pace.prompt_tokens(read(8))
    assert pace.prompt_tokens(Decodes(8, 0), Backlog(9, 9000)) == unread, "there is no gap to be late"


def test_steps_that_nobody_reads_use_up_no_late_gaps() -> None:
    pace = known(Pace(0.2, 0.04))
    late = pace.prompt_tokens(read(8), Backlog(9, 9000))
    for _ in range(1000):
        pace.learn(Decodes(8, 0), 0, machine(8, 0))
        pace.learn(Decodes(8, 0), 190, machine(8, 190))
    assert pace.prompt_tokens(read(8), Backlog(9, 9000)) == late


def test_late_gaps_are_a_share_of_all() -> None:
    gaps = LateGaps(0.04)
    draw, num_late, num_gaps = random.Random(1), 0, 0
    for _ in range(20_000):
        decodes = draw.randrange(1, 65)
        late = gaps.allow(decodes)
        gaps.count(decodes, late=late)
        num_gaps += decodes
        num_late += late * decodes
        assert num_late <= 0.04 * (num_gaps + WINDOW) + 64
    assert num_late >= 0.039 * num_gaps


def test_no_share_allows_nothing_and_what_others_made_late_counts() -> None:
    assert not LateGaps(0.0).allow(1)
    gaps = LateGaps(0.01)
    assert gaps.allow(5)
    for _ in range(10):
        gaps.count(64, late=True)
    assert not gaps.allow(1)
    gaps.count(20 * WINDOW, late=False)
    assert gaps.allow(64)


def known(pace: Pace, decodes: int = 8) -> Pace:
    for _ in range(20):
        pace.learn(read(decodes), 0, machine(decodes, 0))
        pace.learn(read(decodes), 40, machine(decodes, 40))
    return pace


def test_a_step_may_be_late_for_prompts_that_wait() -> None:
    pace = known(Pace(0.2, 0.04))
    in_time = pace.prompt_tokens(read(8))
    assert in_time is not None
    late = pace.prompt_tokens(read(8), Backlog(4, 1000))
    assert machine(8, late or 0) == pytest.approx(LATE_S, rel=0.05)
    assert pace.prompt_tokens(read(8), Backlog(1, 2 * in_time)) == in_time, "little is left to do"
    assert pace.prompt_tokens(read(64), Backlog(4, 9000)) == pace.prompt_tokens(read(64)), "many readers, few prompts"
    assert known(Pace(0.2)).prompt_tokens(read(8), Backlog(4, 9000)) == in_time, "nothing may be late"


def test_late_steps_end_when_their_share_is_used_up() -> None:
    pace = known(Pace(0.2, 0.04))
    steps = []
    for _ in range(200):
        tokens = pace.prompt_tokens(read(8), Backlog(9, 9000)) or 0
        steps.append(machine(8, tokens))
        pace.learn(read(8), tokens, steps[-1])
    num_late = sum(seconds > 0.25 for seconds in steps)
    assert 0.04 * WINDOW / 8 - 1 <= num_late <= 0.04 * (WINDOW + 1600) / 8 + 1
    assert num_late * 8 / (1600 + WINDOW) <= 0.045


def test_a_long_prompt_keeps_the_others_flowing() -> None:
    """Traffic on a simulated clock: each step with decodes ends near the target, and the long prompt ends too."""
    config = SchedulerConfig(
        max_model_len=4096, block_size=16, num_blocks=1024, max_num_seqs=8, max_num_batched_tokens=512,
        max_num_sampled=8, target_step_s=0.2,
    )  # fmt: skip
    run = Harness(Scheduler(config))
    draw = random.Random(3)
    for name in "abc":
        run.scheduler.add(b"", generate(name, [draw.randrange(90) for _ in range(40)], 200))
    times: list[float] = []

    def step() -> None:
        assert run.step()
        plan = run.steps[-1]
        decodes = sum(chunk.length == 1 for chunk in plan.chunks)
        times.append(machine(decodes, plan.num_tokens - decodes))
        run.scheduler.learn(plan, times[-1])

    for _ in range(5):
        step()
    run.scheduler.add(b"", generate("long", [draw.randrange(90) for _ in range(2000)], 5))
    while ("long", 0) not in run.outputs:
        step()
    assert max(times[5:]) <= 0.25
    assert len(times) < 5 + 2000 / 30


@pytest.mark.parametrize(("streamed", "most_s"), [((False, False), 0.8), ((False, True), 0.2)])
def test_steps_are_short_for_streams_alone(streamed: tuple[bool, bool], most_s: float) -> None:
    """Two sequences decode while a prompt that nobody reads runs beside them."""
    config = SchedulerConfig(
        max_model_len=4096, block_size=16, num_blocks=1024, max_num_seqs=8, max_num_batched_tokens=2048,
        max_num_sampled=8, target_step_s=0.2,
    )  # fmt: skip
    run = Harness(Scheduler(config))
    for name, is_streamed in zip("ab", streamed, strict=True):
        run.scheduler.add(b"", msgspec.structs.replace(generate(name, [3] * 40, 200), is_streamed=is_streamed))
    times: list[float] = []

    def step() -> None:
        assert run.step()
        plan = run.steps[-1]
        decodes = sum(chunk.length == 1 for chunk in plan.chunks)
        times.append(machine(decodes, plan.num_tokens - decodes))
        run.scheduler.learn(plan, times[-1])

    for _ in range(8):
        step()
    run.scheduler.add(b"", msgspec.structs.replace(generate("c", [5] * 3000, 5), is_streamed=False))
    for _ in range(8):
        step()
    assert max(times[8:]) == pytest.approx(most_s, rel=0.15)


def test_without_a_target_a_step_takes_what_fits() -> None:
    config = SchedulerConfig(
        max_model_len=4096, block_size=16, num_blocks=1024, max_num_seqs=8, max_num_batched_tokens=512,
        max_num_sampled=8,
    )  # fmt: skip
    run = Harness(Scheduler(config))
    run.scheduler.add(b"", generate("a", [1], 50))
    run.step()
    run.scheduler.learn(run.steps[-1], 10.0)
    run.scheduler.add(b"", generate("long", [2] * 2000, 5))
    run.step()
    assert run.steps[-1].num_tokens == 512


def test_a_burst_is_prefilled_in_long_steps_and_most_gaps_stay_short() -> None:
    config = SchedulerConfig(
        max_model_len=4096, block_size=16, num_blocks=1024, max_num_seqs=16, max_num_batched_tokens=2048,
        max_num_sampled=16, target_step_s=0.2, late_share=0.04,
    )  # fmt: skip
    run = Harness(Scheduler(config))
    for number in range(16):
        run.scheduler.add(b"", generate(f"r{number}", [number] * 300, 128))
    gaps: list[float] = []
    while run.step():
        plan = run.steps[-1]
        decodes = sum(chunk.length == 1 for chunk in plan.chunks)
        seconds = machine(decodes, plan.num_tokens - decodes)
        run.scheduler.learn(plan, seconds)
        gaps += [seconds] * decodes
    gaps.sort()
    assert gaps[int(0.95 * len(gaps))] <= 0.25
    assert 2.0 <= gaps[-1] <= 1.1 * LATE_S
