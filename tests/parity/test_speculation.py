"""Speculation on equals off in families whose layers keep or read in their own ways."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from appliance.engine.adapters import AdapterStore
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.model import DraftModel
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.messages import GenerateRequest
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable
from appliance.program.kv_blocks import blocks_held
from tests.engine.scripted_drafter import ScriptedDrafter
from tests.engine.simulator import SPECULATION, generate
from tests.engine.test_draft_model import CAPS
from tests.engine.test_speculation import NO_ADAPTERS, Answers, answers, summary, texts
from tests.models.tiny import VOCAB_SIZE
from tests.parity.adapted import adapted
from tests.parity.conftest import Checkpoint
from tests.parity.harness import bind, execution_of

# Experts, latents with experts, sinks with windows, the delta rule, state spaces with experts, short convolutions.
NAMES = ["qwen2_moe", "deepseek3", "gpt-oss", "gemma2", "qwen3_next", "jamba", "falcon_h1", "lfm2"]
PROMPT = [5, 9, 17, 33, 65, 129, 7, 12, 99, 200, 31]


def requests() -> list[GenerateRequest]:
    return [
        generate("greedy", PROMPT, 14, temperature=0.0),
        generate("drawn", [*PROMPT, 3, 4], 14, temperature=0.8, seed=2, logprobs=1),
        generate("penalised", PROMPT[:6], 14, temperature=0.8, seed=3, repetition_penalty=1.2, n=2),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_without_drafts(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    bounds = execution_of(sampled=64)
    executable = bind(tiny(name).facts, load_kernel_set("cpu-generic"), execution=bounds)
    check(config_of(executable, bounds), requests(), executable)


def config_of(executable: Executable, bounds: Execution) -> SchedulerConfig:
    program = executable._operators
    windows = program.kv_layout().windows
    limits = bounds.limits
    return SchedulerConfig(
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=max(1, blocks_held(windows, limits.block_size, limits.max_model_len, 64)) * 4,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=64,
        max_num_sampled=limits.max_num_seqs,
        windows=windows,
        num_snapshots=4 if program.states else None,
        max_loras=limits.max_loras,
    )


def check(
    plain: SchedulerConfig,
    asked: list[GenerateRequest],
    executable: Executable,
    adapters: AdapterStore | None = None,
    served: Mapping[str, ServedAdapter] = NO_ADAPTERS,
) -> Answers:
    """Holds answers with drafts of every kind against those without. Returns these."""
    off, _ = answers(plain, asked, executable=executable, vocab=VOCAB_SIZE, adapters=adapters, served=served)
    for kind in ("right", "wrong", "half"):
        config = dataclasses.replace(plain, max_num_sampled=64, speculation=SPECULATION, num_draft_states=20)
        drafter = ScriptedDrafter(texts(asked, off), kind, VOCAB_SIZE)
        on, scheduler = answers(config, asked, [drafter], executable, VOCAB_SIZE, adapters, served)
        assert summary(on) == summary(off), kind
        speculation = scheduler.stats(0.0).speculation
        assert speculation is not None
        assert speculation.methods["scripted"].accepted_tokens > 8 or kind == "wrong"
    return off


def check_with_draft_model(
    off: Answers,
    checkpoint: Checkpoint,
    plain: SchedulerConfig,
    asked: list[GenerateRequest],
    executable: Executable,
    adapters: AdapterStore,
    served: Mapping[str, ServedAdapter],
) -> None:
    """Holds answers of adapters with drafts of the model without them against those without drafts."""
    if plain.num_snapshots is not None:
        return  # a model with states cannot draft
    config = dataclasses.replace(plain, max_num_sampled=64, speculation=CAPS)
    own = dataclasses.replace(plain, num_blocks=400, max_loras=0)
    model = bind(checkpoint.facts, load_kernel_set("cpu-generic"), execution=execution_of())
    drafter = DraftModel(model, own, VocabularyMap.same(VOCAB_SIZE, VOCAB_SIZE))
    on, scheduler = answers(config, asked, [], executable, VOCAB_SIZE, adapters, served, drafter)
    assert summary(on) == summary(off)
    speculation = scheduler.stats(0.0).speculation
    assert speculation is not None
    assert speculation.methods["draft_model"].accepted_tokens > 8


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_answers_of_adapters_are_those_without_drafts(
    name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    checkpoint = tiny(name)
    executable, bounds, store, served = adapted(checkpoint, tmp_path)
    asked = [
        msgspec.structs.replace(request, request_id=f"{request.request_id} {adapter}", adapter=adapter)
        for request in requests()
        for adapter in (None, *served)
    ]
    off = check(config_of(executable, bounds), asked, executable, store, served)
    check_with_draft_model(off, checkpoint, config_of(executable, bounds), asked, executable, store, served)
    greedy = {
        tuple(token for output in off[f"greedy {each}", 0] for token in output.token_ids) for each in (None, *served)
    }
    assert len(greedy) == 4
