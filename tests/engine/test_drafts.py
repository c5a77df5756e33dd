"""Drafts in the scheduler: those that the model samples count, the rest is computed again; tokens stay the same."""

from collections.abc import Sequence

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import FinishReason

from .simulator import SPECULATION, Harness, Propose, generate, mixed

PROMPT = list(range(3, 13))


def configure(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "max_model_len": 64, "block_size": 4, "num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "max_num_sampled": 32, "speculation": SPECULATION,
    }  # fmt: skip
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type] # free keywords


def right(count: int) -> Propose:
    def propose(context: Sequence[int], seed: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(count):
            drafts.append(mixed([*context, *drafts], seed))
        return drafts

    return propose


def wrong(count: int) -> Propose:
    return lambda context, seed: [mixed(context, seed) + 1] * count


def run(propose: Propose, max_tokens: int = 20, config: SchedulerConfig | None = None, **sampling: object) -> Harness:
    harness = Harness(Scheduler(config or configure()), propose=propose)
    harness.scheduler.add(b"", generate("r", PROMPT, max_tokens, seed=1, **sampling))
    harness.run()
    assert harness.scheduler.kv.pool.num_used == 0
    return harness


PLAIN = run(lambda context, seed: []).tokens("r")


@pytest.mark.parametrize(("propose", "steps"), [(right(3), 6), (wrong(3), 20)], ids=["right", "wrong"])
def test_tokens_are_those_without_drafts(propose: Propose, steps: int) -> None:
    """Three right drafts and the token after them are four per step: one of the prompt, then 4 + 4 + 4 + 4 + 3."""
    harness = run(propose)
    assert harness.tokens("r") == PLAIN
    assert len(harness.steps) == steps
    assert harness.runner.num_drafts > 10


def test_what_was_not_agreed_to_is_computed_again() -> None:
    harness = run(wrong(2))
    starts = [plan.chunks[0].start for plan in harness.steps[1:]]
    assert starts == list(range(len(PROMPT), len(PROMPT) + 19))
    assert [plan.chunks[0].num_drafts for plan in harness.steps[1:]] == [2] * 17 + [1, 0]


def test_drafts_end_where_the_answer_ends() -> None:
    harness = run(right(9), max_tokens=5)
    assert harness.tokens("r") == PLAIN[:5]
    assert harness.steps[1].chunks[0].num_drafts == 3, "the fifth token is sampled, and never computed"


def test_a_stop_token_among_agreed_drafts_ends_the_answer() -> None:
    harness = run(right(8), stop_token_ids=(PLAIN[4],))
    assert harness.tokens("r") == PLAIN[: PLAIN.index(PLAIN[4]) + 1]
    assert harness.finish("r").finish_reason is FinishReason.STOP


def test_blocks_of_drafts_are_named_by_tokens_that_were_agreed_to() -> None:
    """A block that only drafts filled is not in the prefix cache: the next request computes its tokens again."""
    harness = run(wrong(6), max_tokens=8)
    said = PROMPT + harness.tokens("r")
    harness.scheduler.add(b"", generate("s", [*said, 9], 1))
    harness.run()
    assert harness.outputs["s", 0][0].num_cached_tokens == (len(said) - 1) // 4 * 4
    drafted = [*PROMPT, *[PLAIN[0], mixed([*PROMPT, PLAIN[0]], 1) + 1] * 6]
    harness.scheduler.add(b"", generate("t", drafted, 1))
    harness.run()
    assert harness.outputs["t", 0][0].num_cached_tokens == 8


def test_drafts_take_nothing_that_others_need() -> None:
    """Budget, logits and blocks for every running sequence come first."""
    for tight in (configure(max_num_sampled=4), configure(max_num_batched_tokens=4), configure(num_blocks=20)):
        harness = Harness(Scheduler(tight), propose=right(6))
        for number in range(4):
            harness.scheduler.add(b"", generate(f"r{number}", PROMPT, 10, seed=number))
        harness.run()
        alone = Harness(Scheduler(configure()))
        for number in range(4):
            alone.scheduler.add(b"", generate(f"r{number}", PROMPT, 10, seed=number))
        alone.run()
        assert all(harness.tokens(f"r{number}") == alone.tokens(f"r{number}") for number in range(4))
        decodes = [plan for plan in harness.steps if all(chunk.is_decode for chunk in plan.chunks)]
        assert any(len(plan.chunks) == 4 for plan in decodes)
        assert harness.scheduler.stats(0.0).num_preemptions == 0
