"""The scheduler's rules, one at a time, on hand-made traffic."""

from collections.abc import Callable

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import STEP_TOKEN_BOUNDS, ErrorKind, FinishReason, SchedulerCaps
from appliance.engine.refusal import Refusal
from appliance.engine.step import StepPlan
from appliance.engine.time_messages import RequestTimes

from .simulator import Harness, generate


def harness(clock: Callable[[], float] = lambda: 0.0, **changes: object) -> Harness:
    values: dict[str, object] = {
        "max_model_len": 128, "block_size": 4, "num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32,
        "max_num_sampled": 8,
    }  # fmt: skip
    return Harness(Scheduler(SchedulerConfig(**(values | changes)), clock))  # type: ignore[arg-type] # free keywords


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(chunk.row, chunk.start, chunk.length, chunk.sample) for chunk in plan.chunks]


def prompt(length: int, first: int = 1) -> list[int]:
    return [first + position % 90 for position in range(length)]


def test_decodes_come_first_then_chunks_within_the_budget() -> None:
    run = harness()
    run.scheduler.add(b"", generate("a", prompt(5), 50))
    run.step()
    run.scheduler.add(b"", generate("b", prompt(70, first=50), 5))
    for _ in range(3):
        run.step()
    assert [shape(plan) for plan in run.steps] == [
        [(0, 0, 5, True)],
        [(0, 5, 1, True), (1, 0, 31, False)],
        [(0, 6, 1, True), (1, 31, 31, False)],
        [(0, 7, 1, True), (1, 62, 8, True)],
    ]


@pytest.mark.parametrize(("factor", "starts_at"), [(0.0, 3.0), (0.5, 4.0), (2.0, 7.0)])
def test_prompts_wait_for_a_part_of_what_the_last_one_took(factor: float, starts_at: float) -> None:
    now = 0.0
    run = harness(lambda: now, delay_factor=factor)
    run.scheduler.add(b"", generate("a", prompt(5), 50))
    run.step()
    run.scheduler.learn(run.steps[-1], 2.0)
    now = 3.0
    run.scheduler.add(b"", generate("b", prompt(5, first=50), 5))
    while run.step() and len(run.steps[-1].chunks) == 1:
        assert run.steps[-1].chunks[0].is_decode, "the first sequence goes on meanwhile"
        now += 0.5
    assert now == starts_at


def test_no_prompt_waits_while_nothing_runs() -> None:
    run = harness(delay_factor=5.0)
    run.scheduler.add(b"", generate("a", prompt(5), 1))
    run.step()
    run.scheduler.learn(run.steps[-1], 2.0)
    run.scheduler.add(b"", generate("b", prompt(5, first=50), 1))
    run.step()
    assert [chunk.length for chunk in run.steps[-1].chunks] == [5]


def test_one_partial_prefill_by_default_and_whole_prompts_share_a_step() -> None:
    run = harness()
    for name, length in (("a", 10), ("b", 15), ("c", 20), ("d", 20)):  # no two with one prefix
        run.scheduler.add(b"", generate(name, prompt(length, first=ord(name)), 1))
    run.run()
    assert [[chunk.length for chunk in plan.chunks] for plan in run.steps] == [[10, 15, 7], [13, 19], [1]]


def test_several_partial_prefills_share_the_budget() -> None:
    run = harness(max_num_partial_prefills=2)
    for name in "ab":
        run.scheduler.add(b"", generate(name, prompt(40, first=ord(name) - 90), 1))
    run.step()
    assert [chunk.length for chunk in run.steps[0].chunks] == [16, 16]


def test_short_prompts_pass_long_ones() -> None:
    run = harness(max_num_partial_prefills=3, max_long_partial_prefills=1, long_prefill_token_threshold=8)
    for name, length in (("long1", 40), ("long2", 40), ("short", 6)):
        run.scheduler.add(b"", generate(name, prompt(length, first=length + ord(name[-1]) - 40), 1))
    run.step()
    assert [new.num_prompt_tokens for new in run.steps[0].new_rows] == [40, 6]
    assert run.steps[0].chunks[0].length == 8, "a long prompt takes no more than the threshold"


def test_without_chunked_prefill_prompts_run_whole() -> None:
    run = harness(chunked_prefill=False, max_num_batched_tokens=128)
    run.scheduler.add(b"", generate("a", prompt(70), 1))
    run.scheduler.add(b"", generate("b", prompt(70, first=20), 1))
    run.run()
    assert [[chunk.length for chunk in plan.chunks] for plan in run.steps] == [[70], [70]]


def test_a_burst_with_one_prefix_computes_it_once_even_in_one_step() -> None:
    run = harness(max_num_batched_tokens=64)
    for number in range(4):
        run.scheduler.add(b"", generate(f"r{number}", [*prompt(32), 60 + number], 1))
    run.run()
    assert [[chunk.length for chunk in plan.chunks] for plan in run.steps] == [[33, 1, 1, 1]]
    stats = run.scheduler.stats(0.0)
    assert (stats.prefix_queries, stats.prefix_hits) == (4 * 33, 3 * 32)


def test_a_prefix_is_looked_for_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second prompt waits for blocks; meanwhile the first decodes within a block and fills no new one."""
    run = harness(num_blocks=4, block_size=16, max_num_batched_tokens=64)
    run.scheduler.add(b"", generate("first", [1] * 33, 12))
    run.step()
    looked: list[object] = []
    find = run.scheduler.kv.pool.lookup
    monkeypatch.setattr(run.scheduler.kv.pool, "lookup", lambda name: (looked.append(name), find(name))[1])
    run.scheduler.add(b"", generate("second", [*[1] * 32, *[2] * 16], 4))
    run.step()
    assert len(looked) == 3, "two blocks are found, and the third is not"
    for _ in range(8):
        run.step()
    assert run.scheduler.stats(0.0).num_waiting == 1
    assert len(looked) == 3
    run.run()
    assert run.outputs["second", 0][0].num_cached_tokens == 32


def test_a_salt_keeps_prefixes_apart() -> None:
    run = harness()
    for name, salt in (("a", None), ("b", "x"), ("c", "y"), ("d", "x")):
        run.scheduler.add(b"", generate(name, prompt(9), 1, salt=salt))
        run.run()
    assert [run.outputs[name, 0][0].num_cached_tokens for name in "abcd"] == [0, 0, 0, 8]


@pytest.mark.parametrize("partials", [1, 4])
@pytest.mark.parametrize("budget", [24, 64, 256])
def test_a_wave_with_one_prefix_computes_it_once(partials: int, budget: int) -> None:
    """For any number of partial prefills, the others wait for the blocks that the first is computing."""
    run = harness(max_num_partial_prefills=partials, max_num_batched_tokens=budget, num_blocks=256)
    for number in range(8):
        run.scheduler.add(b"", generate(f"r{number}", [*prompt(100), 200 + number, 7], 3))
    run.scheduler.add(b"", generate("other", [5] * 30, 3))
    run.run()
    assert run.runner.computed_tokens == 100 + 8 * 2 + 30 + 9 * 2
    assert [run.outputs[f"r{number}", 0][0].num_cached_tokens for number in range(8)] == [0] + [100] * 7


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [8, 10])
def test_n_sequences_share_the_prompt(caching: bool, length: int) -> None:
    run = harness(prefix_caching=caching)
    run.scheduler.add(b"", generate("r", prompt(length), 20, n=3, seed=1))
    run.step()
    run.step()
    assert [chunk.length for chunk in run.steps[1].chunks] == [1, 1, 1]
    assert len(run.steps[1].block_copies) == (2 if length % 4 else 0)
    assert run.scheduler.kv.pool.num_used == 3 + (2 * (1 if length % 4 else 0))
    run.run()
    assert len({tuple(run.tokens("r", index)) for index in range(3)}) == 3


def test_a_leader_computed_again_has_nothing_to_copy_in_that_step() -> None:
    run = harness(max_num_seqs=2, max_num_sampled=2, prefix_caching=False, policy="priority")
    run.scheduler.add(b"", generate("low", prompt(6), 20, n=2, priority=5, seed=3))
    run.step()
    run.scheduler.add(b"", generate("high1", prompt(6, first=30), 2, priority=0))
    run.scheduler.add(b"", generate("high2", prompt(6, first=40), 2, priority=0))
    run.run()
    assert run.scheduler.stats(0.0).num_preemptions >= 1
    assert len(run.tokens("low", 0)) == len(run.tokens("low", 1)) == 20


def test_preemption_takes_the_last_and_loses_no_token() -> None:
    roomy, tight = harness(), harness(num_blocks=9, prefix_caching=False, expected_output=0)
    for run in (roomy, tight):
        run.scheduler.add(b"", generate("first", prompt(12), 20))
        run.scheduler.add(b"", generate("second", prompt(12, first=40), 20))
        run.run()
    assert tight.scheduler.stats(0.0).num_preemptions == 1
    again = [new for plan in tight.steps for new in plan.new_rows]
    assert [new.sequence_id for new in again] == [0, 1, 1]
    for name in ("first", "second"):
        assert tight.tokens(name) == roomy.tokens(name)


def test_newcomers_wait_for_the_blocks_that_answers_of_late_took() -> None:
    run = harness(num_blocks=24, expected_output=0, prefix_caching=False)
    for number in range(40):
        run.scheduler.add(b"", generate(f"learn{number}", prompt(8), 40))
    run.run()
    learnt = run.scheduler.stats(0.0).num_preemptions
    for number in range(10):
        run.scheduler.add(b"", generate(f"r{number}", prompt(8, first=50), 40))
    run.run()
    assert learnt > 20
    assert run.scheduler.stats(0.0).num_preemptions - learnt < 5


def test_priorities_order_admission_and_displace_worse_ones() -> None:
    run = harness(policy="priority", max_num_seqs=1, max_num_sampled=1)
    run.scheduler.add(b"", generate("later", prompt(4), 3, priority=1, arrival=2.0))
    run.scheduler.add(b"", generate("sooner", prompt(4), 3, priority=1, arrival=1.0))
    run.step()
    run.scheduler.add(b"", generate("urgent", prompt(4), 3, priority=-1, arrival=3.0))
    run.run()
    order = [new.sequence_id for plan in run.steps for new in plan.new_rows]
    assert order == [1, 2, 1, 0]


def test_a_sequence_as_long_as_the_cache_ends_with_length() -> None:
    run = harness(num_blocks=4)
    run.scheduler.add(b"", generate("r", prompt(10), 50))
    run.run()
    assert len(run.tokens("r")) == 6
    assert run.finish("r").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (generate("r", []), "prompt", "empty"),
        (generate("r", prompt(128)), "prompt", "context of 128"),
        (generate("r", prompt(100)), "prompt", "KV cache holds 64"),
        (generate("r", prompt(3), priority=2), "priority", "must be 0"),
        (generate("taken", prompt(3)), "request_id", "in use"),
    ],
)
def test_refusals_name_the_field(request_, field: str, words: str) -> None:
    run = harness(num_blocks=16)
    run.scheduler.add(b"", generate("taken", prompt(3), 2))
    with pytest.raises(Refusal, match=words) as refusal:
        run.scheduler.add(b"", request_)
    assert refusal.value.field == field
    assert refusal.value.kind is ErrorKind.INVALID
    run.run()
    assert len(run.tokens("taken")) == 2


def test_too_many_waiting_are_refused_as_overload() -> None:
    run = harness(max_num_seqs=2, max_waiting=1)
    run.scheduler.add(b"", generate("a", prompt(3), n=2))  # two rows are free: these do not wait
    run.scheduler.add(b"", generate("b", prompt(3)))
    with pytest.raises(Refusal, match="limit is 1") as refusal:
        run.scheduler.add(b"", generate("c", prompt(3)))
    assert refusal.value.kind is ErrorKind.OVERLOADED


def test_caps_hold_from_the_next_step_on() -> None:
    run = harness(max_num_seqs=2, max_waiting=2)
    for name, length in (("long", 60), ("other", 6), ("waits", 3)):
        run.scheduler.add(b"", generate(name, prompt(length, first=ord(name[0]))))
    run.step()
    caps = SchedulerCaps(
        max_num_partial_prefills=2, max_long_partial_prefills=1, long_prefill_token_threshold=8, max_waiting=1
    )
    run.scheduler.use(caps)
    with pytest.raises(Refusal, match="limit is 1"):
        run.scheduler.add(b"", generate("refused", prompt(3)))
    run.step()
    assert shape(run.steps[0]) == [(0, 0, 32, False)]
    assert shape(run.steps[1]) == [(0, 32, 8, False), (1, 0, 6, True)], "a long prompt leaves room, and one may pass"
    run.run()
    assert all(run.tokens(name) for name in ("long", "other", "waits"))


def test_the_time_of_a_request_is_told_by_phase_with_its_end() -> None:
    clock = iter(float(2**tick) for tick in range(20))  # asked at: come, come, start, first token, end, start ...
    run = harness(clock=lambda: next(clock), max_num_seqs=1, max_num_sampled=1)
    for name in "ab":
        run.scheduler.add(b"", generate(name, prompt(5), 3))
    run.run()
    assert run.finish("a").times == RequestTimes(4 - 1, 8 - 4, 16 - 8)
    assert run.finish("b").times == RequestTimes(32 - 2, 64 - 32, 128 - 64)
    assert [output.times for output in run.outputs["a", 0][:-1]] == [None, None]
    run.scheduler.add(b"", generate("c", prompt(5), 3, n=2))
    run.gather(run.scheduler.abort([(b"", "c")]))
    assert (run.finish("c", 0).times, run.finish("c", 1).times) == (None, RequestTimes(512 - 256))


def test_steps_are_counted_by_their_tokens() -> None:
    run = harness()
    run.scheduler.add(b"", generate("a", prompt(40), 3))
    run.run()
    stats = run.scheduler.stats(0.0)
    sizes = dict(zip((*STEP_TOKEN_BOUNDS, "more"), stats.step_sizes, strict=True))
    assert {bound: count for bound, count in sizes.items() if count} == {1: 2, 8: 1, 32: 1}
    assert stats.step_tokens == 40 + 2


def test_a_failed_row_leaves_nothing_in_the_prefix_cache() -> None:
    run = harness()
    run.runner.broken.add(0)
    run.scheduler.add(b"", generate("sick", prompt(9), 5))
    run.run()
    run.scheduler.add(b"", generate("well", prompt(9), 5))
    run.run()
    assert run.finish("sick").finish_reason is FinishReason.ERROR
    assert run.outputs["well", 0][0].num_cached_tokens == 0
    assert run.finish("well").finish_reason is FinishReason.LENGTH


def test_the_prefix_cache_is_reset_only_when_idle() -> None:
    run = harness()
    run.scheduler.add(b"", generate("a", prompt(9), 3))
    run.step()
    assert not run.scheduler.kv.reset()
    run.run()
    assert run.scheduler.kv.reset()
    run.scheduler.add(b"", generate("b", prompt(9), 1))
    run.run()
    assert run.outputs["b", 0][0].num_cached_tokens == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_sampled": 3}, "below max_num_seqs 8"),
        ({"chunked_prefill": False}, "must hold the longest"),
    ],
)
def test_sizes_that_cannot_work_together(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        harness(**changes)


def test_what_read_a_failed_row_leaves_nothing_in_the_prefix_cache() -> None:
    run = harness(block_size=4, num_blocks=40, max_num_batched_tokens=64, max_num_seqs=4)
    run.scheduler.add(b"", generate("fails", prompt(12), 4))
    run.scheduler.add(b"", generate("reads", prompt(20), 4))
    run.runner.broken = {0}
    run.step()
    assert len(run.steps[0].chunks) == 2, "one shares the blocks that the other fills in the same step"
    assert run.scheduler.stats(0.0).num_preemptions == 1
    assert run.scheduler.kv.pool.num_cached == 0
    run.run()
    assert run.finish("reads").finish_reason is FinishReason.LENGTH
