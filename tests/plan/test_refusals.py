"""What only the planner can refuse: each at its line and column, with a rule and a hint; all at once."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from appliance.base.errors import DiagnosedError, SpecError
from appliance.catalog.rules import SUMMARIES
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.plan.features import RULE_NOT_BUILT
from appliance.spec import iter_set_fields

from .broken import BROKEN, Broken
from .checkpoints import from_config
from .machines import MODEL, load, plan, qwen, small_model


def _unknown() -> ModelFacts:
    return msgspec.structs.replace(small_model(), architecture="NeverHeardOfForCausalLM")


def _spqr() -> ModelFacts:
    return msgspec.structs.replace(small_model(), quantization="spqr")


def _f8() -> ModelFacts:
    model = small_model()
    first = msgspec.structs.replace(model.tensors[0], storage="f8_e4m3")
    return msgspec.structs.replace(model, tensors=(first, *model.tensors[1:]))


def _tokenizer(kind: str) -> Callable[[], ModelFacts]:
    def changed() -> ModelFacts:
        model = small_model()
        return msgspec.structs.replace(model, tokenizer=msgspec.structs.replace(model.tokenizer, kind=kind))

    return changed


def _with(**config: Any) -> Callable[[], ModelFacts]:
    """The small model with other values in its config."""

    def changed() -> ModelFacts:
        model = small_model()
        return msgspec.structs.replace(model, config=model.config | config)

    return changed


def _tensors(change: Callable[[TensorFacts], list[TensorFacts]]) -> Callable[[], ModelFacts]:
    """The small model with something else in place of its last matrix before the head."""

    def changed() -> ModelFacts:
        model = small_model()
        last = "model.layers.1.mlp.down_proj.weight"
        tensors = [new for each in model.tensors for new in (change(each) if each.name == last else [each])]
        return msgspec.structs.replace(model, tensors=tuple(tensors))

    return changed


MODELS: dict[str, Callable[[], ModelFacts]] = {
    "small": small_model,
    "qwen": qwen,
    "unknown": _unknown,
    "spqr": _spqr,
    "f8": _f8,
    "no-tokenizer": _tokenizer("none"),
    "sentencepiece": _tokenizer("sentencepiece"),
    "quick-gelu": _with(hidden_act="quick_gelu"),
    "mrope": _with(rope_scaling={"rope_type": "mrope"}),
    "odd-rotation": _with(partial_rotary_factor=0.2),
    "incomplete": _tensors(lambda _: []),
    "unread": _tensors(lambda tensor: [tensor, msgspec.structs.replace(tensor, name="model.extra.weight")]),
    "misshapen": _tensors(lambda tensor: [msgspec.structs.replace(tensor, shape=(64, 96))]),
    "gpt2-cross": lambda: from_config("gpt2", add_cross_attention=True),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.path}-{broken.model}-{broken.rule}")
def test_refusal_is_located(broken: Broken) -> None:
    with pytest.raises(DiagnosedError) as caught:
        plan(load(broken.text), MODELS[broken.model]())
    found = {(each.rule, each.path, each.line, each.column): each for each in caught.value.diagnostics}
    wanted = (broken.rule, broken.path, broken.line, broken.column)
    assert wanted in found
    assert found[wanted].hint
    assert "Traceback" not in caught.value.report()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.rule)
def test_every_rule_can_be_explained(broken: Broken) -> None:
    assert broken.rule in SUMMARIES


def test_everything_is_reported_at_once() -> None:
    sections = "cache: {block_size: 1}\nparallelism: {enable_multimodal_encoder_data_parallel: true}\n"
    text = f"{MODEL}  max_model_len: 4096\n{sections}scheduler: {{disable_chunked_mm_input: true}}\n"
    with pytest.raises(SpecError) as caught:
        plan(load(text))
    rules = [each.rule for each in caught.value.diagnostics]
    assert sorted(rules) == sorted(["plan/context", RULE_NOT_BUILT, RULE_NOT_BUILT, "plan/block-size"])


def test_a_checkpoint_of_other_tensors_is_told_what_is_wrong_with_it() -> None:
    with pytest.raises(SpecError) as caught:
        plan(load(), MODELS["incomplete"]())
    (found,) = caught.value.diagnostics
    assert found.message == "the checkpoint lacks 1 tensor: model.layers.1.mlp.down_proj.weight"
    assert found.hint == "is the download complete?"


def test_everything_that_a_family_cannot_express_is_refused_at_once() -> None:
    changed = _with(hidden_act="quick_gelu", rope_scaling={"rope_type": "linear", "factor": 0})
    with pytest.raises(SpecError) as caught:
        plan(load(), changed())
    assert [each.rule for each in caught.value.diagnostics] == ["plan/family", "plan/family"]
    assert "silu" in caught.value.diagnostics[0].allowed


def test_unbuilt_fields_are_refused_however_they_are_set() -> None:
    loaded = load(MODEL, "scheduler.disable_chunked_mm_input=true")
    assert any(not found.can_run for found in iter_set_fields(loaded))
    with pytest.raises(SpecError) as caught:
        plan(loaded)
    assert "not in this version" in caught.value.report()
    assert "--set scheduler.disable_chunked_mm_input" in caught.value.report()


def test_more_ranks_than_cpus_are_refused_as_such_whatever_threads_they_ask_for() -> None:
    with pytest.raises(SpecError) as caught:
        plan(load(MODEL + "parallelism: {data: 64}\nhardware: {num_threads: 1}\n"), small_model())
    assert [(each.rule, each.path) for each in caught.value.diagnostics] == [("plan/parallelism", "parallelism.data")]
