"""Medusa's heads and MLP speculators against their published formulas, and speculation with them against none."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from appliance.base.errors import SpecError
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.load import load_draft_model
from appliance.engine.step import DraftWish
from appliance.models.errors import ModelError
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.engine.test_speculation import answers, summary
from tests.models.tiny import VOCAB_SIZE
from tests.models.tiny_stages import NAMES, NUM_STAGES, TinyStages, make_stages
from tests.parity.conftest import kernel_set_names
from tests.parity.test_draft_heads import PROMPTS, SPEC, new_row, run_whole
from tests.parity.test_draft_models import REQUESTS

pytestmark = pytest.mark.skipif(len(kernel_set_names()) < 2, reason="no native kernel set is built here")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], TinyStages]:
    found: dict[tuple[str, bool], TinyStages] = {}

    def get(name: str, is_right: bool) -> TinyStages:
        if (name, is_right) not in found:
            found[name, is_right] = make_stages(name, tmp_path_factory.mktemp(name), is_right=is_right)
        return found[name, is_right]

    return get


def planned(
    head: TinyStages,
    folder: Path,
    kernels: str = "cpu-generic",
    more: str = "",
    asked: str = "",
    own: Path | None = None,
) -> EnginePlan:
    spec = folder / "deployment.yaml"
    model = f", model: {own or head.head}{more}"
    text = SPEC.format(source=head.target, kernels=kernels, method=head.method, model=model)
    spec.write_text(text.replace("num_tokens: 4, max", asked or f"num_tokens: {NUM_STAGES}, max"))
    return prepare(spec).plan


@pytest.mark.parametrize("kernels", ["reference", "cpu-generic"])
@pytest.mark.parametrize("name", NAMES)
def test_drafts_are_those_of_the_formula(
    name: str, kernels: str, made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    head = made(name, False)
    plan = planned(head, tmp_path, kernels)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    drafter = loaded.drafter
    for row, prompt in enumerate(PROMPTS):
        drafter.put(new_row(prompt, row))
        drafter.observe(row, 0, run_whole(backend.executable, prompt[:-1]))
    drafted = drafter.draft(DraftWish((0, 1, 2), 9, 100))
    assert drafted.num_passes == NUM_STAGES
    assert {row: drafted.drafts[row].token_ids for row in range(3)} == {
        row: head.drafts(prompt, NUM_STAGES) for row, prompt in enumerate(PROMPTS)
    }
    assert drafter.draft(DraftWish((1,), 2, 100)).drafts[1].token_ids == head.drafts(PROMPTS[1], 2)
    backend.executable.close()
    drafter.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "medusa-shared"])
@pytest.mark.parametrize("is_right", [True, False], ids=["right", "random"])
def test_answers_are_those_without_drafts(
    name: str, is_right: bool, made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    plan = planned(made(name, is_right), tmp_path)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    plain = dataclasses.replace(config, speculation=None)
    off, _ = answers(plain, REQUESTS, executable=backend.executable, vocab=VOCAB_SIZE)
    given = {"executable": backend.executable, "vocab": VOCAB_SIZE, "draft_model": loaded.drafter}
    on, scheduler = answers(config, REQUESTS, **given)
    assert summary(on) == summary(off)
    counts = scheduler.stats(0.0).speculation.methods[plan.speculation.methods[0]]
    assert counts.draft_tokens > 40
    least = 0.3 if name.startswith("speculator") else 0.1  # Medusa's heads do not see the last token
    assert counts.accepted_tokens > least * counts.draft_tokens or not is_right
    again, _ = answers(config, REQUESTS, **given)
    assert summary(again) == summary(off), "behind cached prefixes, and in rows that others had"
    backend.executable.close()
    loaded.drafter.close()


@pytest.mark.parametrize("name", ["medusa", "medusa-shared", "speculator", "speculator-tied"])
def test_stages_take_the_planned_bytes(name: str, made: Callable[[str, bool], TinyStages], tmp_path: Path) -> None:
    plan = planned(made(name, False), tmp_path)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    loaded = load_draft_model(plan, config, backend, lambda *_: None)
    assert loaded is not None
    loaded.drafter.close()
    backend.executable.close()
    report = BootReport(seconds={}, memory_bytes=dict(loaded.memory_bytes), num_blocks=0)
    rows = {row.name: row for row in compare_boot(plan, report) if row.name.startswith("draft_")}
    for exact in ("draft_weights", "draft_inputs"):
        assert rows[exact].planned_bytes == rows[exact].measured_bytes > 0
    assert {row.name: row.difference for row in rows.values() if not row.is_close} == {}
    assert "draft_kv_cache" not in {item.name for item in plan.memory[0].items}
    assert plan.speculation is not None
    assert plan.speculation.draft_model is not None
    assert plan.speculation.draft_model.num_tokens == NUM_STAGES
    assert plan.speculation.draft_model.lent == ({"head": "head"} if name == "medusa-shared" else {})


def changed(head: TinyStages, folder: Path, **config: object) -> Path:
    """Returns a copy of the heads whose config says something else."""
    folder.mkdir()
    for file in head.head.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))
    return folder


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("medusa-cut", {"hidden_size": 80}, "made for states of 80 numbers; the model's have 64"),
        ("medusa-cut", {"num_heads": 4}, r"lacks 3 tensors: .*blocks\.3\.layers\.0\.weight"),
        ("medusa-cut", {"num_heads": 0}, "does not state medusa_num_heads"),
        ("medusa", {"medusa_num_heads": 1000}, "medusa_num_heads 1,000"),
        ("speculator", {"vocab_size": 300}, "made for 300 tokens; the model has 256"),
        ("speculator", {"emb_dim": 32}, "made for states of 32 numbers; the model's have 64"),
        ("speculator", {"inner_dim": 32}, "the config calls for"),
        ("speculator", {"n_predict": None}, "does not state n_predict"),
    ],
)
def test_heads_of_another_model_are_refused(
    name: str, config: dict[str, object], message: str, made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    head = made(name, False)
    with pytest.raises(SpecError, match=message):
        planned(head, tmp_path, own=changed(head, tmp_path / "head", **config))


@pytest.mark.parametrize(
    ("more", "asked", "message"),
    [
        (", draft_kv_cache: 1MiB", "", "keep no cache"),
        ("", "num_tokens: 4, max", "the heads guess 3 tokens, and 4 are asked for"),
    ],
)
def test_what_heads_do_not_have_is_refused(
    more: str, asked: str, message: str, made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        planned(made("speculator", False), tmp_path, more=more, asked=asked)


def test_a_table_that_names_a_token_that_is_not_there_is_refused(
    made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    folder = changed(made("medusa-cut", False), tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    tensors["token_map"] = np.where(tensors["token_map"] == tensors["token_map"][0], 999, tensors["token_map"])
    save_file(tensors, folder / "model.safetensors")
    plan = planned(made("medusa-cut", False), tmp_path, own=folder)
    config = SchedulerConfig.from_plan(plan)
    backend = load_backend(plan, config, lambda *_: None)
    with pytest.raises(ModelError, match="token_map names tokens twice, or tokens that the model does not have"):
        load_draft_model(plan, config, backend, lambda *_: None)
    backend.executable.close()


def test_heads_that_are_named_as_a_draft_model_are_refused_with_their_method(
    made: Callable[[str, bool], TinyStages], tmp_path: Path
) -> None:
    head = dataclasses.replace(made("medusa", False), method="draft_model")
    with pytest.raises(SpecError, match="heads of the method medusa") as caught:
        planned(head, tmp_path)
    assert "write method: medusa" in str(caught.value.diagnostics)
