"""Speculation on equals off in families whose layers keep or read in their own ways."""

import dataclasses
from collections.abc import Callable

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.messages import GenerateRequest
from appliance.kernels.binding import load_kernel_set
from appliance.program.kv_blocks import blocks_held
from tests.engine.scripted_drafter import ScriptedDrafter
from tests.engine.simulator import SPECULATION, generate
from tests.engine.test_speculation import answers, summary, texts
from tests.models.tiny import VOCAB_SIZE
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
    program = executable._operators
    windows = program.kv_layout().windows
    limits = bounds.limits
    plain = SchedulerConfig(
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=max(1, blocks_held(windows, limits.block_size, limits.max_model_len, 64)) * 4,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=64,
        max_num_sampled=limits.max_num_seqs,
        windows=windows,
        num_snapshots=4 if program.states else None,
    )
    off, _ = answers(plain, requests(), executable=executable, vocab=VOCAB_SIZE)
    for kind in ("right", "wrong", "half"):
        config = dataclasses.replace(plain, max_num_sampled=64, speculation=SPECULATION, num_draft_states=20)
        drafter = ScriptedDrafter(texts(requests(), off), kind, VOCAB_SIZE)
        on, scheduler = answers(config, requests(), [drafter], executable, VOCAB_SIZE)
        assert summary(on) == summary(off), kind
        speculation = scheduler.stats(0.0).speculation
        assert speculation is not None
        assert speculation.methods["scripted"].accepted_tokens > 8 or kind == "wrong"
