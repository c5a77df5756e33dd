"""What is planned of adapters: which are served is in a digest of its own, and how many may be in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.base.errors import SpecError
from appliance.checkpoint.adapter import AdapterFacts
from appliance.checkpoint.adapter_modules import AdapterModule
from appliance.checkpoint.facts import TensorFacts
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.prepare import resolve_files
from appliance.plan.types import EnginePlan
from tests.deploy.field_values import adapters_of
from tests.plan.machines import MODEL, load, plan, small_model

TWO = "lora: {max_loras: 3, adapters: [{name: one, source: ./one}, {name: two, source: ./two}]}"


def planned(*overrides: str) -> EnginePlan:
    loaded = load(f"{MODEL}{TWO}\n", *overrides)
    return plan(loaded, files=ResolvedFiles(adapters=adapters_of(loaded)))


def memory_of(found: EnginePlan, name: str) -> int:
    return next(item.size_bytes for item in found.memory[0].items if item.name == name)


def kept(found: EnginePlan) -> int:
    assert found.adapters is not None
    return found.adapters.max_cpu_loras


@pytest.mark.parametrize(
    "override",
    ["lora.adapters[0].source=./other", "lora.adapters[1].name=three", "lora.adapters[0].scale=2.0",
     "lora.adapters[1].pinned=true", "lora.max_cpu_loras=7"],
)  # fmt: skip
def test_the_set_has_a_digest_of_its_own(override: str) -> None:
    one, other = planned(), planned(override)
    assert one.adapters_sha256 != other.adapters_sha256
    assert (one.engine_sha256, one.serving_sha256) == (other.engine_sha256, other.serving_sha256)


@pytest.mark.parametrize("override", ["lora.max_loras=4", "lora.max_rank=32", "lora.dtype=float32"])
def test_what_memory_is_sized_by_needs_another_engine(override: str) -> None:
    one, other = planned(), planned(override)
    assert one.engine_sha256 != other.engine_sha256
    assert one.adapters_sha256 == other.adapters_sha256


def test_there_is_a_slot_more_than_adapters_of_a_step() -> None:
    one, more = (memory_of(planned(f"lora.max_loras={count}"), "adapters") for count in (3, 7))
    assert one * 2 == more


def test_as_many_are_kept_as_are_listed_or_a_step_has_where_requests_load_others() -> None:
    assert kept(planned()) == 2
    for override in ("lora.allow_runtime_updating=true", "lora.resolver_dir=./here"):
        assert kept(planned(override)) == 3
    found = planned("lora.max_cpu_loras=5")
    assert kept(found) == 5
    assert memory_of(found, "kept_adapters") * 4 == memory_of(found, "adapters") * 5
    with pytest.raises(SpecError, match="2 adapters are listed, and 1 may be in memory"):
        planned("lora.max_loras=1", "lora.max_cpu_loras=1")


def test_paths_start_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    loaded = load(f"{MODEL}lora: {{resolver_dir: ./here, runtime_paths: [./there, /else]}}\n")
    files = resolve_files(loaded, tmp_path, allow_fetch=False)
    rules = plan(loaded, files=files).serving.adapters
    assert rules.resolver_dir == str(tmp_path / "here")
    assert rules.paths == (str(tmp_path / "there"), "/else")
    assert rules.resolves


def with_facts(change: Callable[[AdapterFacts], AdapterFacts]) -> EnginePlan:
    """A plan with one adapter, of other facts."""
    loaded = load(f"{MODEL}lora: {{adapters: [{{name: one, source: ./one}}]}}\n")
    return plan(loaded, files=ResolvedFiles(adapters=tuple(change(each) for each in adapters_of(loaded))))


def renamed(name: str) -> Callable[[AdapterFacts], AdapterFacts]:
    return lambda facts: replace(facts, modules=tuple(replace(each, name=name) for each in facts.modules))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("language_model.layers.0.self_attn.o_proj", "the adapter one: a: the model has no place for an adapter of"),
        ("model.layers.0.mlp.down_proj", "the adapter one: a: the adapter is of a weight"),
        ("lm_head", "the adapter one: b: the adapter is of a weight"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_at_its_source(name: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_facts(renamed(name))
    (found,) = caught.value.diagnostics
    assert (found.path, found.rule) == ("lora.adapters[0].source", "plan/adapters")
    assert problem in found.message
    assert found.hint


def test_what_is_odd_about_an_adapter_is_told() -> None:
    assert with_facts(lambda facts: facts).warnings == ()
    (told,) = with_facts(lambda facts: replace(facts, has_effect=False)).warnings
    assert told == "the adapter one adds nothing: what it has is zero"
    (told,) = with_facts(lambda facts: replace(facts, base_model="owner/Other-7B")).warnings
    assert "was trained on owner/Other-7B" in told
    assert with_facts(lambda facts: replace(facts, base_model="owner/model")).warnings == ()


def test_head_and_embedding_have_places_where_an_adapter_needs_them() -> None:
    plain = with_facts(lambda facts: facts).adapters
    assert plain is not None
    assert (plain.also, plain.whole) == ((), ())
    vocabulary = small_model().geometry.vocab_size
    table = TensorFacts(
        name="t", stored_name="t", storage="f32", shape=(vocabulary, 64), file="a", offset_bytes=0, size_bytes=1
    )
    own = AdapterModule(name="model.embed_tokens", whole=table)
    found = with_facts(lambda facts: replace(facts, modules=(*facts.modules, own)))
    assert found.adapters is not None
    assert (found.adapters.also, found.adapters.whole) == (("embed",), ("embed",))
    more = memory_of(found, "adapters") - memory_of(with_facts(lambda facts: facts), "adapters")
    assert more == 2 * 2 * vocabulary * 64  # in two slots, in bf16
