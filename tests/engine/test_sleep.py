"""An engine that sleeps and wakes, of one rank and of several: it answers as before, and takes nothing meanwhile."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import (
    GenerateRequest,
    OutputBatch,
    SamplingParams,
    UtilityRequest,
    UtilityResult,
)
from appliance.engine.ranks.group import RankGroup
from appliance.engine.sleep_messages import SleepLevel, SleepStats, SleepTag
from appliance.kernels.errors import ExecutableError
from appliance.plan.prepare import prepare
from tests.engine.test_expert_places import BALANCED
from tests.engine.test_rank_group import (
    STAGES,
    TENSOR,
    TORCH,
    answers,
    engine_of,
    machine_with,
    pytestmark,
    rank_processes,
    spec_of,
)

__all__ = ["pytestmark", "spec_of"]

SLEEPS = "model.enable_sleep_mode=true"
SWAPS = ("cache.num_blocks=16", "hardware.memory.kv_cache=auto", "hardware.memory.swap_space=1MiB")
CASES = [
    ("llama", ()),
    ("llama", ("hardware.memory.lock=true", "loading.packed_access=copy")),
    ("llama", SWAPS),
    ("jamba", ()),
    ("deepseek3", ("speculative.method=ngram", "speculative.num_tokens=3")),
    ("gemma3", TENSOR),
    ("jamba", TENSOR),
    ("llama", (*TENSOR, *SWAPS)),
    ("llama", STAGES),
    ("qwen3_next", STAGES),
    ("llama", TENSOR + STAGES),
    ("llama", (TORCH,)),
    ("llama", (TORCH, *TENSOR)),
    ("llama", (TORCH, *STAGES)),
    ("mixtral", (*TENSOR, *BALANCED, "parallelism.num_redundant_experts=2")),
]


def asked(engine: InprocEngine, **fields: object) -> SleepStats | str:
    """What the engine answers to a call about sleep."""
    engine.send(UtilityRequest(call_id="sleep", **fields))  # type: ignore[arg-type] # the fields of the message
    (told,) = [event for event in engine.receive() if isinstance(event, UtilityResult)]
    return told.error if told.error is not None else msgspec.msgpack.decode(told.value, type=SleepStats)


def sleep(engine: InprocEngine, level: SleepLevel = 1) -> SleepStats | str:
    return asked(engine, method="sleep", level=level)


def wake(engine: InprocEngine, *tags: SleepTag) -> SleepStats | str:
    return asked(engine, method="wake_up", tags=tags)


def refusal(engine: InprocEngine) -> str | None:
    """Why the engine does not take a request; None if it does."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    engine.send(GenerateRequest(request_id="late", prompt_token_ids=[5], sampling=sampling))
    found = [output for event in engine.receive() if isinstance(event, OutputBatch) for output in event.outputs]
    return found[0].error


@pytest.mark.parametrize(("name", "overrides"), CASES)
def test_it_answers_as_before(
    name: str, overrides: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path
) -> None:
    plan = prepare(str(spec_of(name)), (SLEEPS, *overrides), machine_with(4, tmp_path), to_run=False).plan
    with InprocEngine.from_plan(plan) as engine:
        expected = answers(engine, 1)
        for level in (1, 2, 1):
            slept = sleep(engine, level)
            assert isinstance(slept, SleepStats)
            assert (slept.asleep, slept.level, slept.sleep_s > 0) == (("weights", "kv_cache"), level, True)
            assert "the engine sleeps" in (refusal(engine) or "")
            first, last = ("weights", "kv_cache") if level == 1 else ("kv_cache", "weights")
            half = wake(engine, first)
            assert isinstance(half, SleepStats)
            assert half.asleep == (last,)
            assert "the engine sleeps" in (refusal(engine) or "")
            woken = wake(engine)
            assert isinstance(woken, SleepStats)
            assert (woken.asleep, woken.wake_s > 0) == ((), True)
            assert answers(engine, 1) == expected
            engine._loop._scheduler.check_invariants()


def drafted(engine: InprocEngine) -> tuple[list[int], int]:
    """A long answer, and how many of its tokens a model has drafted."""
    sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    engine.send(GenerateRequest(request_id="long", prompt_token_ids=[*range(5, 15)], sampling=sampling))
    before, tokens = accepted(engine), list[int]()
    while engine.has_work:
        outputs = [each for event in engine.receive() if isinstance(event, OutputBatch) for each in event.outputs]
        tokens += [token for output in outputs for token in output.token_ids]
    return tokens, accepted(engine) - before


def accepted(engine: InprocEngine) -> int:
    told = engine._loop._stats().speculation
    methods = {} if told is None else told.methods
    return methods["draft_model"].accepted_tokens if "draft_model" in methods else 0


@pytest.mark.parametrize("kernel_set", [(), (TORCH,)], ids=["native", "torch"])
def test_a_draft_model_sleeps_with_its_model(kernel_set: tuple[str, ...], spec_of: Callable[[str], Path]) -> None:
    model = spec_of("llama").parent / "model"
    drafts = f"speculative={{method: draft_model, model: {model}, num_tokens: 3, adaptive: false}}"
    with engine_of(spec_of("llama"), SLEEPS, drafts, *kernel_set) as engine:
        expected = drafted(engine)
        assert expected[1] > 30
        for level in (1, 2):
            sleep(engine, level)
            wake(engine)
            assert drafted(engine) == expected


def test_prefixes_are_forgotten_and_memory_is_made_resident_anew(spec_of: Callable[[str], Path]) -> None:
    with engine_of(spec_of("llama"), SLEEPS, "cache.prefault=64KiB") as engine:
        pool = engine._loop._scheduler.kv.pool
        answers(engine, 1)
        while engine._loop.idle():
            pass
        assert pool.num_cached > 0
        resident = pool.num_touched
        sleep(engine)
        assert (pool.num_cached, pool.num_touched, engine._loop.idle()) == (0, 0, False)
        wake(engine)
        while engine._loop.idle():
            pass
        assert 0 < pool.num_touched < resident


@pytest.mark.parametrize("ranks", [(), TENSOR, STAGES], ids=["one", "tensor", "stages"])
def test_a_checkpoint_that_is_gone_leaves_it_asleep_with_the_reason(
    ranks: tuple[str, ...], spec_of: Callable[[str], Path]
) -> None:
    model = spec_of("qwen2_moe").parent / "model" / "model.safetensors"
    with engine_of(spec_of("qwen2_moe"), SLEEPS, "loading.keep_packed=false", *ranks) as engine:
        expected = answers(engine, 1)
        sleep(engine, 2)
        model.rename(model.with_suffix(".gone"))
        try:
            told = wake(engine)
        finally:
            model.with_suffix(".gone").rename(model)
        assert "the weights cannot be read again" in str(told)
        assert "the engine sleeps" in (refusal(engine) or "")
        assert isinstance(wake(engine), SleepStats)
        assert answers(engine, 1) == expected


def test_a_rank_that_cannot_wake_is_named(spec_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their memory then, and have nothing to do the next time."""
    with engine_of(spec_of("llama"), SLEEPS, *TENSOR) as engine:
        expected = answers(engine, 1)
        sleep(engine)
        group = engine._loop._runner.executable
        assert isinstance(group, RankGroup)
        waits = group._followers.wait_done
        with monkeypatch.context() as patch:
            patch.setattr(group._followers, "wait_done", lambda: (waits(), "rank 1: there is no memory")[1])
            assert wake(engine) == "rank 1: there is no memory"
        assert isinstance(wake(engine), SleepStats)
        assert answers(engine, 1) == expected
        assert len(rank_processes()) == 1


def test_a_leader_that_cannot_wake_says_so(spec_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ExecutableError("there is no memory")

    with engine_of(spec_of("llama"), SLEEPS, *STAGES) as engine:
        expected = answers(engine, 1)
        sleep(engine)
        group = engine._loop._runner.executable
        assert isinstance(group, RankGroup)
        with monkeypatch.context() as patch:
            patch.setattr(group._own, "wake_weights", fail)
            assert wake(engine) == "there is no memory"
        assert isinstance(wake(engine), SleepStats)
        assert answers(engine, 1) == expected
