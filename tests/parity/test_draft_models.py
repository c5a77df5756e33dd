"""Draft models on families whose layers keep or read in their own ways: speculation on equals off, as planned."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.load import load_draft_model
from appliance.engine.step import DraftWish, NewRow
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.engine.simulator import generate
from tests.engine.test_speculation import answers, summary
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint, kernel_set_names
from tests.parity.test_speculation import NAMES, PROMPT

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, dtype: float32}}
hardware: {{kernels: {{kernel_set: cpu-generic}}, num_threads: 1}}
scheduler: {{max_num_seqs: 6, max_num_batched_tokens: 48}}
cache: {{block_size: 8}}
speculative: {{model: {draft}, num_tokens: 4, max_num_draft_tokens: 24, adaptive: false}}
"""
REQUESTS = [
    generate("greedy", PROMPT, 16, temperature=0.0),
    generate("drawn", [*PROMPT, 3, 4], 16, temperature=0.8, seed=2, logprobs=1),
    generate("penalised", PROMPT[:6], 16, temperature=0.8, seed=3, repetition_penalty=1.2, n=2),
    generate(
        "stops", PROMPT[:5], 24, temperature=0.9, seed=4, min_tokens=6, stop_token_ids=tuple(range(0, VOCAB_SIZE, 9))
    ),
    generate("biased", PROMPT[:7], 16, temperature=0.8, seed=5, logit_bias={7: 2.0}, bad_words=((5,), (8, 9))),
]

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


def planned(folder: Path, source: Path, draft: Path) -> EnginePlan:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=source, draft=draft))
    return prepare(spec).plan


@pytest.mark.parametrize("name", ["llama", *NAMES])
def test_answers_are_those_without_drafts(name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    """The draft model is the model itself, so that its drafts are right, and its states go on from the right place."""
    target = tiny(name).folder
    plan = planned(tmp_path, target, target)
    config = SchedulerConfig.from_plan(plan)
    plain = dataclasses.replace(config, speculation=None)
    backend = load_backend(plan, config, lambda *_: None)
    draft = load_draft_model(plan, config, backend, lambda *_: None)
    assert draft is not None
    off, _ = answers(plain, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE)
    on, scheduler = answers(
        config, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE, draft_model=draft.drafter
    )
    assert summary(on) == summary(off)
    counts = scheduler.stats(0.0).speculation.methods["draft_model"]
    assert counts.draft_tokens > 40
    assert counts.accepted_tokens > 0.9 * counts.draft_tokens
    backend.executable.close()
    draft.drafter.close()


@pytest.mark.parametrize("name", ["gemma2", "qwen3_next"])
def test_a_draft_model_takes_the_planned_bytes(name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    plan = planned(tmp_path, tiny("llama").folder, tiny(name).folder)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    draft = load_draft_model(plan, config, backend, lambda *_: None)
    assert draft is not None
    backend.executable.close()
    report = BootReport(seconds={}, memory_bytes=dict(draft.memory_bytes), num_blocks=0)
    rows = {row.name: row for row in compare_boot(plan, report) if row.name.startswith("draft_")}
    draft.drafter.close()
    states = {"draft_states"} if name == "qwen3_next" else set[str]()
    assert set(rows) == {"draft_weights", "draft_kv_cache", "draft_activations", "draft_workspace", *states}
    assert rows["draft_weights"].planned_bytes == rows["draft_weights"].measured_bytes
    assert rows["draft_kv_cache"].planned_bytes == rows["draft_kv_cache"].measured_bytes
    assert {name: row.difference for name, row in rows.items() if not row.is_close} == {}


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_next", "jamba"])
def test_a_draft_model_that_is_wrong_goes_back_to_what_was_said(
    name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    """What it drafts next is what it would if it had read only what was said."""
    plan = planned(tmp_path, tiny("llama").folder, tiny(name).folder)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    draft = load_draft_model(plan, config, backend, lambda *_: None)
    assert draft is not None
    plain = dataclasses.replace(config, speculation=None)
    off, _ = answers(plain, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE)
    on, _ = answers(config, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE, draft_model=draft.drafter)
    assert summary(on) == summary(off)
    tokens = [*PROMPT, 44, 3, 9]
    draft.drafter.put(new_row(0, tokens))
    draft.drafter.put(new_row(1, [*tokens, 77, 78]))
    first = draft.drafter.draft(DraftWish((0,), 4, 100)).drafts[0].token_ids
    draft.drafter.say(0, [77, 78])  # other tokens than drafted
    again = draft.drafter.draft(DraftWish((0, 1), 4, 100)).drafts
    assert again[0].token_ids == again[1].token_ids != first
    draft.drafter.say(1, again[1].token_ids[:2])  # half of the draft is right
    draft.drafter.put(new_row(2, [*tokens, 77, 78, *again[1].token_ids[:2]]))
    last = draft.drafter.draft(DraftWish((1, 2), 4, 100)).drafts
    assert last[1].token_ids == last[2].token_ids
    assert last[1].token_ids[:2] == again[1].token_ids[2:]
    backend.executable.close()
    draft.drafter.close()


def new_row(row: int, tokens: list[int]) -> NewRow:
    sampling = generate("r", tokens, 8, temperature=0.0).sampling
    return NewRow(row, row, tokens, len(tokens), sampling, (), 0, None)
