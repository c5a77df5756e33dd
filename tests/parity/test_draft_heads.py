"""Drafting heads against their published formulas in torch, and speculation with them against its absence."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from appliance.base.errors import SpecError
from appliance.engine.backend import load_backend
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.head import HeadDrafter
from appliance.engine.drafting.load import load_draft_model
from appliance.engine.step import DraftWish, NewRow
from appliance.kernels.interface import Executable, StatePieces, StepInputs
from appliance.kernels.logits import HostLogits
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.engine.simulator import generate
from tests.engine.test_speculation import answers, summary
from tests.models.adapters import make_adapter
from tests.models.gguf_heads import write_head_gguf
from tests.models.tiny import VOCAB_SIZE
from tests.models.tiny_eagle3 import make_eagle3
from tests.models.tiny_heads import HEADS, TinyHead, make_head
from tests.parity.conftest import Checkpoint, kernel_set_names
from tests.parity.test_draft_models import REQUESTS

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, dtype: float32}}
hardware: {{kernels: {{kernel_set: {kernels}}}, num_threads: 1}}
scheduler: {{max_num_seqs: 6, max_num_batched_tokens: 48}}
cache: {{block_size: 8}}
speculative: {{method: {method}{model}, num_tokens: 4, max_num_draft_tokens: 24, adaptive: false}}
"""
PROMPTS = [
    [5, 9, 17, 33, 65, 129, 7, 12, 99, 200, 31],
    [3, 77],
    [250, 2, 2, 8, 140, 66, 5, 91, 18, 40, 41, 42, 43, 7, 9],
]

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], TinyHead]:
    found: dict[tuple[str, bool], TinyHead] = {}

    def get(name: str, is_right: bool) -> TinyHead:
        if (name, is_right) not in found:
            found[name, is_right] = make_head(name, tmp_path_factory.mktemp(name), is_right=is_right)
        return found[name, is_right]

    return get


def planned(head: TinyHead, folder: Path, kernels: str = "cpu-generic", source: Path | None = None) -> EnginePlan:
    spec, is_own = folder / "deployment.yaml", head.head == head.target
    method, model = ("mtp", "") if is_own else ("eagle", f", model: {head.head}")
    spec.write_text(SPEC.format(source=source or head.target, kernels=kernels, method=method, model=model))
    return prepare(spec).plan


class Watched:
    """An executable whose first logits are kept."""

    def __init__(self, inner: Executable) -> None:
        self._inner = inner
        self.first: np.ndarray | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run(self, inputs: StepInputs) -> HostLogits:
        logits = self._inner.run(inputs)
        assert isinstance(logits, HostLogits)
        if self.first is None:
            self.first = logits.values[-1].copy()
        return logits


@pytest.mark.parametrize("kernels", ["reference", "cpu-generic"])
@pytest.mark.parametrize("name", list(HEADS))
def test_drafts_are_those_of_the_formula(
    name: str, kernels: str, made: Callable[[str, bool], TinyHead], tmp_path: Path
) -> None:
    """The model's states, then the drafts of several passes, of which each reads the state that the head made."""
    head = made(name, False)
    check_drafts(head, planned(head, tmp_path, kernels))


@pytest.mark.parametrize("name", ["glm4_moe", "glm4_moe_lite", "qwen3_5", "qwen3_5_moe"])
def test_heads_of_gguf_files_draft_by_the_formula(
    name: str, made: Callable[[str, bool], TinyHead], tmp_path: Path
) -> None:
    head = made(name, False)
    write_head_gguf(head, tmp_path / "model.gguf")
    check_drafts(head, planned(head, tmp_path, source=tmp_path / "model.gguf"))


def check_drafts(head: TinyHead, plan: EnginePlan) -> None:
    config = SchedulerConfig.from_plan(plan)
    for prompt in PROMPTS:
        backend = load_backend(plan, config, lambda *_: None)
        loaded = load_draft_model(plan, config, backend, lambda *_: None)
        assert loaded is not None
        drafter = loaded.drafter
        assert isinstance(drafter, HeadDrafter)
        watched = Watched(drafter._executable)
        drafter._executable = watched  # type: ignore[assignment] # it has what it hands on
        wanted, logits = head.drafts(prompt, 3)
        drafter.put(new_row(prompt))
        states = run_whole(backend.executable, prompt[:-1])
        drafter.observe(0, 0, states)
        drafted = drafter.draft(DraftWish((0,), 3, 100))
        assert watched.first is not None
        np.testing.assert_allclose(watched.first, logits.numpy(), rtol=0, atol=3e-4 * float(logits.abs().max()))
        assert drafted.drafts[0].token_ids == wanted
        with torch.inference_mode():
            theirs = head.base.model(torch.tensor([prompt[:-1]])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(states, theirs, rtol=0, atol=3e-4 * float(np.abs(theirs).max()))
        backend.executable.close()
        drafter.close()


def new_row(tokens: list[int], row: int = 0) -> NewRow:
    request = generate("r", tokens, 8, temperature=0.0)
    return NewRow(row, 0, tokens, len(tokens), request.sampling, (), 0, None)


def run_whole(executable: Executable, tokens: list[int]) -> np.ndarray:
    """Runs one sequence from its first token on; returns what was kept of each token."""
    program = executable._program if hasattr(executable, "_lanes") else executable._operators
    count, num_groups = len(tokens), len(program.kv_layout().windows)
    blocks = np.arange(num_groups * 8, dtype=np.int32).reshape(num_groups, 1, 8)
    positions = np.arange(count, dtype=np.int32)
    slots = blocks[:, 0, positions // 8] * np.int32(8) + positions % np.int32(8)
    bounds = np.array([0, count], np.int32)
    pieces = None
    if program.states:
        pieces = StatePieces(np.array([0, 1], np.int32), bounds, np.array([-1], np.int32), np.array([0], np.int32))
    executable.run(
        StepInputs(
            token_ids=np.array(tokens, np.int32),
            positions=positions,
            slot_mapping=np.ascontiguousarray(slots),
            query_start=bounds,
            seq_lens=np.array([count], np.int32),
            block_tables=blocks,
            sampled_rows=np.array([count - 1], np.int32),
            states=pieces,
        )
    )
    return executable.kept().copy()


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "random"])
@pytest.mark.parametrize("name", list(HEADS))
def test_answers_are_those_without_drafts(
    name: str, is_right: bool, made: Callable[[str, bool], TinyHead], tmp_path: Path
) -> None:
    plan = planned(made(name, is_right), tmp_path)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    plain = dataclasses.replace(config, speculation=None)
    off, _ = answers(plain, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE)
    on, scheduler = answers(
        config, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE, draft_model=loaded.drafter
    )
    assert summary(on) == summary(off)
    counts = scheduler.stats(0.0).speculation.methods["eagle" if name == "eagle" else "mtp"]
    assert counts.draft_tokens > 40
    assert counts.accepted_tokens > 0.3 * counts.draft_tokens or not is_right
    again, _ = answers(config, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE, draft_model=loaded.drafter)
    assert summary(again) == summary(off), "behind cached prefixes, and in rows that others had"
    backend.executable.close()
    loaded.drafter.close()


@pytest.mark.parametrize(
    ("name", "lent"),
    [
        ("deepseek3", {}),
        ("qwen3_next", {"embed": "embed", "head": "head"}),
        ("eagle", {"embed": "embed", "head": "head"}),
    ],
)
def test_a_head_takes_the_planned_bytes(
    name: str, lent: dict[str, str], made: Callable[[str, bool], TinyHead], tmp_path: Path
) -> None:
    """DeepSeek's head has tables of its own; the others read those of the model, which memory has once."""
    plan = planned(made(name, False), tmp_path)
    assert plan.speculation is not None
    assert plan.speculation.draft_model is not None
    assert plan.speculation.draft_model.lent == lent
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    measured = dict(backend.executable.memory_bytes) | dict(loaded.memory_bytes)
    rows = {row.name: row for row in compare_boot(plan, BootReport(seconds={}, memory_bytes=measured, num_blocks=0))}
    backend.executable.close()
    loaded.drafter.close()
    for exact in ("weights", "kv_cache", "draft_weights", "draft_kv_cache", "draft_inputs"):
        assert rows[exact].planned_bytes == rows[exact].measured_bytes > 0
    assert {row.name: row.difference for row in rows.values() if not row.is_close} == {}


@pytest.mark.parametrize("kernels", ["reference", "cpu-generic"])
def test_a_head_that_reads_several_layers_drafts_by_its_formula(kernels: str, tmp_path: Path) -> None:
    """It knows three of four tokens, by numbers of its own, and reads a model of latent attention."""
    head = make_eagle3("deepseek3", tmp_path)
    spec = tmp_path / "deployment.yaml"
    spec.write_text(SPEC.format(source=head.target, kernels=kernels, method="eagle3", model=f", model: {head.head}"))
    plan = prepare(spec).plan
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    for prompt in PROMPTS:
        loaded.drafter.put(new_row(prompt))
        states = run_whole(backend.executable, prompt[:-1])
        with torch.inference_mode():
            theirs = head.states(prompt[:-1]).numpy()
        np.testing.assert_allclose(states, theirs, rtol=0, atol=3e-4 * float(np.abs(theirs).max()))
        loaded.drafter.observe(0, 0, states)
        drafted = loaded.drafter.draft(DraftWish((0,), 3, 100))
        assert drafted.drafts[0].token_ids == head.drafts(prompt, 3)
        loaded.drafter.drop(0)
    if kernels != "reference":  # whose rows round by their neighbours
        plain = dataclasses.replace(config, speculation=None)
        off, _ = answers(plain, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE)
        on, scheduler = answers(
            config, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE, draft_model=loaded.drafter
        )
        assert summary(on) == summary(off)
        assert scheduler.stats(0.0).speculation.methods["eagle3"].draft_tokens > 40
    backend.executable.close()
    loaded.drafter.close()


def test_a_model_without_a_head_is_refused(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    for name, message in (("llama", "no head here"), ("glm4_moe", "no layer that predicts")):
        spec = tmp_path / "deployment.yaml"
        source = tiny(name).folder
        spec.write_text(SPEC.format(source=source, kernels="cpu-generic", method="mtp", model=""))
        with pytest.raises(SpecError, match=message):
            prepare(spec)


@pytest.mark.parametrize("name", ["eagle", "qwen3_next"])
def test_answers_of_adapters_are_those_without_drafts(
    name: str, made: Callable[[str, bool], TinyHead], tmp_path: Path
) -> None:
    """A head reads the states of a model that an adapter changes."""
    head = made(name, True)
    make_adapter(head.base, tmp_path / "one", 1)
    planned(head, tmp_path)
    spec = tmp_path / "deployment.yaml"
    spec.write_text(f"{spec.read_text()}lora: {{adapters: [{{name: one, source: {tmp_path / 'one'}}}]}}\n")
    plan = prepare(spec).plan
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    asked = [msgspec.structs.replace(each, adapter=adapter, request_id=f"{each.request_id} {adapter}")
             for each in REQUESTS for adapter in (None, "one")]  # fmt: skip
    assert plan.adapters is not None
    served = {each.name: ServedAdapter(each.sha256, each.scale) for each in plan.adapters.served}
    given = backend.executable, VOCAB_SIZE, backend.adapters, served
    off, _ = answers(dataclasses.replace(config, speculation=None), asked, [], *given)
    on, scheduler = answers(config, asked, [], *given, loaded.drafter)
    assert summary(on) == summary(off)
    assert summary(off)["greedy None", 0] != summary(off)["greedy one", 0]
    assert scheduler.stats(0.0).speculation.methods["eagle" if name == "eagle" else "mtp"].accepted_tokens > 8
    backend.executable.close()
    loaded.drafter.close()
