"""The cost model of steps, on a simulated machine: time is an argument."""

import random

import pytest

from appliance.engine.core.gaps import WINDOW, LateGaps
from appliance.engine.core.pace import (
    ALONE_S,
    FIRST_TOKENS,
    MIN_TOKENS,
    PAUSE_S,
    PAUSE_STEP,
    Backlog,
    DecodeCount,
    Pace,
)


def machine(decodes: int, prompt_tokens: int) -> float:
    """Returns the seconds of a step: weights are read once, then each token costs less than a step of its own."""
    return 0.020 + 0.001 * decodes + 0.004 * prompt_tokens


def read(count: int) -> DecodeCount:
    return DecodeCount(count, count)


EIGHT = read(8)


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
    unread, one = pace.prompt_tokens(DecodeCount(8, 0)), pace.prompt_tokens(DecodeCount(8, 1))
    assert machine(8, unread or 0) == pytest.approx(0.8, rel=0.05)
    assert one == pace.prompt_tokens(read(8))


def test_a_prompt_alone_runs_in_few_even_pieces() -> None:
    pace, alone = known(Pace(0.2, 0.04)), DecodeCount(0, 0)
    most = pace.prompt_tokens(alone, 625)
    assert most == 625, "to its end, as that is less than ALONE_S away"
    assert machine(0, most) == pytest.approx(ALONE_S, rel=0.05)
    assert pace.prompt_tokens(alone, 700) == 350
    assert pace.prompt_tokens(alone, 2000) == 500
    assert pace.prompt_tokens(alone, 10) == pace.prompt_tokens(alone), "other prompts fill the step"
    assert pace.prompt_tokens(DecodeCount(1, 0), 2000) == pace.prompt_tokens(DecodeCount(1, 0)), (
        "that one waits for its next"
    )
    assert Pace(0.2).prompt_tokens(alone, 2000) == FIRST_TOKENS, "nothing is known"


def test_steps_that_nobody_reads_use_up_no_late_gaps() -> None:
    pace = known(Pace(0.2, 0.04))
    for _ in range(1000):
        pace.learn(DecodeCount(8, 0), 0, machine(8, 0))
        pace.learn(DecodeCount(8, 0), 190, 5.0)  # late, if somebody read it
    assert pace.pause(read(8), Backlog(9, 9000, 100)) is not None


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


def test_decodes_wait_for_prompts_that_are_many() -> None:
    in_time = known(Pace(0.2, 0.04)).prompt_tokens(read(8))
    assert in_time is not None

    def first_pause(backlog: Backlog, decodes: DecodeCount = EIGHT, share: float = 0.04) -> int | None:
        return known(Pace(0.2, share)).pause(decodes, backlog)

    token_s = machine(0, 101) - machine(0, 100)
    assert first_pause(Backlog(4, 1000, 250)) == pytest.approx(250, abs=1), "to the end of the first prompt"
    assert (first_pause(Backlog(40, 1000, 25)) or 0) * token_s == pytest.approx(PAUSE_STEP * 0.2, rel=0.1)
    assert (first_pause(Backlog(4, 9000, 9000)) or 0) * token_s == pytest.approx(PAUSE_S, rel=0.05)
    assert first_pause(Backlog(1, 2 * in_time, in_time)) is None, "little is left to do"
    assert first_pause(Backlog(4, 9000, 1000), read(64)) is None, "many readers, few prompts"
    assert first_pause(Backlog(0, 9000, 1000)) is None, "nobody awaits what they begin with"
    assert first_pause(Backlog(4, 9000, 1000), DecodeCount(8, 0)) is None, "nobody would be held up"
    assert first_pause(Backlog(4, 9000, 1000), share=0.0) is None, "nothing may be late"
    assert Pace(0.2, 0.04).pause(read(8), Backlog(4, 9000, 1000)) is None, "nothing is known"
    assert Pace(None).pause(read(8), Backlog(4, 9000, 1000)) is None


def test_a_pause_ends_with_the_prompts_and_in_time() -> None:
    pace, paused_s = known(Pace(0.2, 0.04)), 0.0
    while (tokens := pace.pause(read(8), Backlog(9, 9000, 100))) is not None:
        paused_s += machine(0, tokens)
        pace.learn(DecodeCount(0, 0), tokens, machine(0, tokens))
    assert PAUSE_S - 0.4 <= paused_s + machine(8, 0) <= 1.1 * PAUSE_S
    assert pace.pause(read(8), Backlog(9, 9000, 100)) is None, "the decodes come first"
    pace.learn(read(8), 0, machine(8, 0))
    assert pace.pause(read(8), Backlog(9, 9000, 100)) is not None
    assert pace.pause(read(8), Backlog(0, 0, 0)) is None


def test_pauses_end_when_their_share_is_used_up() -> None:
    pace = known(Pace(0.2, 0.04))
    gaps, paused_s = [], 0.0
    while len(gaps) < 200:
        tokens = pace.pause(read(8), Backlog(9, 9000, 300))
        if tokens is None:
            tokens = pace.prompt_tokens(read(8)) or 0
            seconds = machine(8, tokens)
            pace.learn(read(8), tokens, seconds)
            gaps.append(paused_s + seconds)
            paused_s = 0.0
        else:
            pace.learn(DecodeCount(0, 0), tokens, machine(0, tokens))
            paused_s += machine(0, tokens)
    num_late = sum(seconds > 0.25 for seconds in gaps)
    assert 0.04 * WINDOW / 8 - 1 <= num_late <= 0.04 * (WINDOW + 1600) / 8 + 1
    assert num_late * 8 / (1600 + WINDOW) <= 0.045
