"""A whole engine that speculates: from the plan to outputs, statistics and live changes."""

from pathlib import Path

import msgspec

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import (
    DraftCounts,
    EngineStats,
    GenerateRequest,
    LiveSettings,
    OutputBatch,
    SamplingParams,
    SequenceOutput,
)
from appliance.engine.scripted import Reply, Script
from appliance.plan.types import EnginePlan, SpeculationPlan

from .plans import scripted_plan

SONG = [30, 31, 32, 33, 34, 35] * 12
SCRIPT = Script(replies=[Reply([7, 8], SONG)], eos=0)
SPECULATION = SpeculationPlan(
    methods=("suffix", "ngram"),
    num_tokens=6,
    max_num_draft_tokens=8,
    adaptive=False,
    prompt_lookup_min=3,
    prompt_lookup_max=5,
    suffix_max_depth=24,
    suffix_max_cached_requests=10,
    suffix_cache_bytes=1 << 16,
    suffix_max_spec_factor=1.0,
    suffix_min_token_prob=0.1,
)


def plan(folder: Path, speculation: SpeculationPlan | None) -> EnginePlan:
    return scripted_plan(folder, SCRIPT, speculation=speculation, scheduler={"max_num_sampled": 16})


def sing(engine: InprocEngine, name: str) -> list[SequenceOutput]:
    sampling = SamplingParams(max_tokens=60, temperature=0.0)
    engine.send(GenerateRequest(request_id=name, prompt_token_ids=[5, 7, 8], sampling=sampling, eos_token_ids=(0,)))
    outputs: list[SequenceOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        for event in engine.receive():
            assert isinstance(event, OutputBatch)
            outputs += event.outputs
    return outputs


def tokens(outputs: list[SequenceOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def stats(engine: InprocEngine) -> EngineStats:
    return msgspec.msgpack.decode(engine.call("stats"), type=EngineStats)


def test_an_engine_says_the_same_in_fewer_steps_and_tells_how(tmp_path: Path) -> None:
    with InprocEngine.from_plan(plan(tmp_path, None)) as engine:
        plain = sing(engine, "a")
        assert tokens(plain) == SONG[:60]
        assert stats(engine).speculation is None
        assert plain[-1].drafts is None
    with InprocEngine.from_plan(plan(tmp_path, SPECULATION)) as engine:
        first, num_steps = sing(engine, "a"), stats(engine).num_steps
        assert tokens(first) == tokens(plain)
        assert num_steps < 30
        counts = first[-1].drafts
        assert counts is not None
        told = stats(engine).speculation
        assert told is not None
        assert counts.accepted_tokens == sum(each.accepted_tokens for each in told.methods.values()) > 30
        assert counts.drafts == told.steps["verified"]
        second = sing(engine, "b")
        assert tokens(second) == tokens(plain)
        assert stats(engine).num_steps - num_steps < num_steps, "it was said before"


def test_an_engine_that_chooses_says_the_same(tmp_path: Path) -> None:
    """Each answer by measured times: whatever they are, its tokens are those of the song."""
    choosing = msgspec.structs.replace(SPECULATION, adaptive=True)
    with InprocEngine.from_plan(plan(tmp_path, choosing)) as engine:
        for number in range(4):
            assert tokens(sing(engine, f"r{number}")) == SONG[:60]
        told = stats(engine).speculation
        assert told is not None
        assert sum(told.steps.values()) > 4


def test_it_is_turned_off_live(tmp_path: Path) -> None:
    on = plan(tmp_path, SPECULATION)
    off = plan(tmp_path, msgspec.structs.replace(SPECULATION, enabled=False))
    with InprocEngine.from_plan(on) as engine:
        engine.send(LiveSettings.of(off))
        last = sing(engine, "a")[-1]
        assert last.drafts == DraftCounts()
        engine.send(LiveSettings.of(on))
        last = sing(engine, "b")[-1]
        assert last.drafts is not None
        assert last.drafts.accepted_tokens > 0


def test_counts_of_several_sequences_add_up() -> None:
    one = DraftCounts().with_draft(4, 2).with_draft(3, 0)
    other = DraftCounts().with_draft(5, 5)
    assert (one.drafts, one.draft_tokens, one.accepted_tokens, one.histogram) == (2, 7, 2, (1, 0, 1))
    assert one + other == DraftCounts(12, 7, (1, 0, 1, 0, 0, 1))
