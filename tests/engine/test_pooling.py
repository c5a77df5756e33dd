"""Models that pool in the scheduler: whole prompts, vectors in place of tokens, and no sequence that stays."""

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import ErrorKind, FinishReason, GenerateRequest, SamplingParams, SequenceOutput
from appliance.engine.refusal import Refusal
from appliance.engine.step import RowError, StepPlan, StepResult


def scheduler(**changes: object) -> Scheduler:
    """One of an encoder: no caches, whole prompts."""
    values: dict[str, object] = {
        "max_model_len": 32, "block_size": 16, "num_blocks": 0, "windows": (), "max_num_seqs": 4,
        "max_num_batched_tokens": 32, "max_num_sampled": 4, "chunked_prefill": False, "prefix_caching": False,
        "pooling": "mean",
    }  # fmt: skip
    return Scheduler(SchedulerConfig(**{**values, **changes}))  # type: ignore[arg-type]


def ask(engine: Scheduler, key: str, length: int) -> None:
    engine.add(b"c", GenerateRequest(request_id=key, prompt_token_ids=[1] * length, sampling=SamplingParams()))


def pooled(plan: StepPlan, failed: tuple[int, ...] = ()) -> StepResult:
    """The row's number as the vector of each chunk that ends a prompt."""
    rows = [chunk.row for chunk in plan.chunks if chunk.sample]
    errors = {row: RowError(ErrorKind.INTERNAL, "NaN") for row in failed}
    return StepResult(plan.step, [[] for _ in rows], vectors={row: bytes([row]) for row in rows}, errors=errors)


def run(engine: Scheduler) -> list[SequenceOutput]:
    plan = engine.schedule()
    assert plan is not None
    outputs = engine.commit(plan, pooled(plan)).get(b"c", [])
    engine.check_invariants()
    return outputs


def test_a_step_takes_the_whole_prompts_that_fit_its_budget() -> None:
    engine = scheduler()
    for key, length in (("a", 10), ("b", 20), ("c", 5), ("d", 32)):
        ask(engine, key, length)
    done = [[output.request_id for output in run(engine)] for _ in range(3)]
    assert done == [["a", "b"], ["c"], ["d"]]
    assert not engine.has_work


def test_a_sequence_ends_with_its_vector() -> None:
    engine = scheduler()
    ask(engine, "a", 32)
    [output] = run(engine)
    assert output.vector is not None
    assert output.token_ids == []
    assert output.finish_reason is FinishReason.STOP
    assert output.times is not None
    assert output.times.prefill_s is not None
    assert engine.stats(0.0).generation_tokens == 0


def test_a_prompt_may_be_as_long_as_the_context_and_no_longer() -> None:
    with pytest.raises(Refusal, match="33 tokens; the context has 32"):
        ask(scheduler(), "a", 33)


def test_a_row_that_failed_is_told_alone() -> None:
    engine = scheduler()
    ask(engine, "a", 4)
    ask(engine, "b", 4)
    plan = engine.schedule()
    assert plan is not None
    first, other = engine.commit(plan, pooled(plan, failed=(plan.chunks[0].row,)))[b"c"]
    assert (first.error, first.vector) == ("NaN", None)
    assert other.vector is not None
    assert not engine.has_work


def test_all_tokens_of_a_prompt_count_as_rows() -> None:
    engine = scheduler(pooling="all", max_num_sampled=12)
    for key in ("a", "b"):
        ask(engine, key, 8)
    assert [[output.request_id for output in run(engine)] for _ in range(2)] == [["a"], ["b"]]


def test_a_decoder_that_pools_its_last_token_shares_prefixes_and_runs_in_chunks() -> None:
    engine = scheduler(
        pooling="last", windows=(None,), num_blocks=16, chunked_prefill=True, prefix_caching=True, block_size=4
    )
    ask(engine, "a", 30)
    assert [output.request_id for output in run(engine)] == ["a"]
    ask(engine, "b", 31)
    [output] = run(engine)
    assert output.num_cached_tokens == 28


def test_pooling_of_all_tokens_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="all tokens of a prompt in one step"):
        scheduler(chunked_prefill=True)
