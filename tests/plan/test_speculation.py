"""What is planned of speculation: who proposes, what it costs in memory, what changes live, and what it excludes."""

import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.vocabulary import Likeness, Relation
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.messages import SpeculationCaps
from appliance.hardware import load_profiles, select_profile
from appliance.plan.compile import Outcome, run_passes
from appliance.plan.inputs import DraftModelFiles, PlanInputs, ResolvedFiles
from appliance.plan.types import EnginePlan

from .machines import MODEL, load, machine, small_model


def outcome(section: str, *overrides: str, draft: DraftModelFiles | None = None) -> Outcome:
    facts = machine()
    profile = select_profile(facts, load_profiles()).profile
    loaded, files = load(MODEL + section, *overrides), ResolvedFiles(draft_model=draft)
    return run_passes(PlanInputs(loaded=loaded, facts=facts, profile=profile, model=small_model(), files=files))


def planned(section: str, *overrides: str, draft: DraftModelFiles | None = None) -> EnginePlan:
    found = outcome(section, *overrides, draft=draft)
    assert not found.ledger.refusals
    return found.plan


def bytes_of(plan: EnginePlan, name: str) -> int:
    return sum(item.size_bytes for item in plan.memory[0].items if item.name == name)


def test_without_a_section_there_is_none() -> None:
    plan = planned("")
    assert plan.speculation is None
    assert plan.scheduler.max_num_sampled is None
    assert SchedulerConfig.from_plan(plan).speculation is None


def test_defaults_are_decided_and_priced() -> None:
    plain, plan = planned(""), planned("speculative: {}\n")
    found = plan.speculation
    assert found is not None
    assert (found.methods, found.num_tokens, found.max_num_draft_tokens) == (("suffix",), 16, 32)
    assert plan.scheduler.max_num_sampled == plan.scheduler.max_num_seqs + 32
    assert bytes_of(plan, "drafts") == 64 << 20
    assert bytes_of(plan, "activations") >= bytes_of(plain, "activations")
    paths = {decision.path for decision in plan.decisions}
    assert {"speculation.methods", "speculation.num_tokens", "speculation.max_num_draft_tokens"} <= paths
    config = SchedulerConfig.from_plan(plan)
    assert config.speculation is not None
    assert (config.speculation.num_tokens, config.max_num_sampled) == (16, plan.scheduler.max_num_sampled)


@pytest.mark.parametrize(
    ("given", "least", "longest"),
    [("", 3, 5), ("prompt_lookup_max: 2", 2, 2), ("prompt_lookup_min: 7", 7, 7), ("prompt_lookup_min: 1", 1, 5)],
)
def test_the_window_that_is_left_open_fits_what_is_given(given: str, least: int, longest: int) -> None:
    found = planned(f"speculative: {{method: [ngram, suffix], {given}}}\n").speculation
    assert found is not None
    assert found.methods == ("ngram", "suffix")
    assert (found.prompt_lookup_min, found.prompt_lookup_max) == (least, longest)


def test_wishes_are_taken_and_nothing_is_kept_that_is_not_looked_up() -> None:
    plan = planned("speculative: {method: ngram, num_tokens: 40}\n")
    assert plan.speculation is not None
    assert plan.speculation.max_num_draft_tokens == 40, "a request's proposals fit a step"
    assert bytes_of(plan, "drafts") == 0
    assert bytes_of(planned("speculative: {suffix_decoding_max_cached_requests: 0}\n"), "drafts") == 0


def test_what_changes_live_is_in_no_engine_digest() -> None:
    on, off = planned("speculative: {}\n"), planned("speculative: {enabled: false, num_tokens: 3, adaptive: false}\n")
    other = planned("speculative: {method: ngram}\n")
    assert on.engine_sha256 == off.engine_sha256 != other.engine_sha256
    assert on.serving_sha256 != off.serving_sha256
    assert planned("").engine_sha256 != on.engine_sha256


def test_a_model_that_pools_has_nothing_to_propose() -> None:
    found = outcome("speculative: {}\n", "model.task=embed")
    assert "plan/speculation" in {refusal.rule for refusal in found.ledger.refusals}


DRAFTED = "speculative: {model: ./draft}\n"


def draft_of(facts: ModelFacts | None = None, relation: Relation = "same") -> DraftModelFiles:
    """A model of one layer, if none is given."""
    facts = small_model(num_hidden_layers=1) if facts is None else facts
    return DraftModelFiles(facts=facts, likeness=Likeness(relation, 310, 320), tokenizer_path="./draft")


def test_a_draft_model_has_one_rank() -> None:
    wish = "speculative.draft_tensor_parallel_size"
    assert planned(DRAFTED, f"{wish}=1", draft=draft_of()) is not None
    refusals = outcome(DRAFTED, f"{wish}=2", draft=draft_of()).ledger.refusals
    assert [(each.path, each.allowed) for each in refusals] == [(wish, "1")]


def test_a_draft_model_is_planned_beside_the_model() -> None:
    plain, plan = planned("speculative: {method: suffix}\n"), planned(DRAFTED, draft=draft_of())
    found = plan.speculation
    assert found is not None
    assert found.methods == ("draft_model",)
    assert found.draft_model is not None
    assert found.draft_model.max_model_len == plan.model.max_model_len == 128
    assert 0.2 < found.draft_model.share < 1.0
    weights = sum(each.planned_bytes for each in found.draft_model.precision.weights)
    assert weights <= bytes_of(plan, "draft_weights") <= weights + (1 << 20)
    num_blocks = plan.scheduler.max_num_seqs * -(-128 // plan.cache.block_size)
    assert found.draft_model.num_blocks == num_blocks
    one_block = bytes_of(plan, "draft_kv_cache") // num_blocks
    assert one_block == plan.memory[0].kv_bytes_per_block // 2, "one layer of two"
    assert bytes_of(plan, "draft_activations") > 0
    assert plan.engine_sha256 != plain.engine_sha256
    caps = SpeculationCaps.of(found)
    assert caps is not None
    assert (caps.model_method, caps.looks_up, caps.model_share) == ("draft_model", False, found.draft_model.share)


def test_a_draft_model_may_be_asked_beside_others() -> None:
    section = (
        "speculative: {method: [suffix, draft_model], model: ./draft, draft_kv_cache: 64KiB, max_model_len: 100}\n"
    )
    found = planned(section, draft=draft_of(relation="by_text")).speculation
    assert found is not None
    assert found.methods == ("suffix", "draft_model")
    assert found.draft_model is not None
    assert (found.draft_model.max_model_len, found.draft_model.vocabulary) == (100, "by_text")
    assert found.draft_model.num_blocks < 100
    caps = SpeculationCaps.of(found)
    assert caps is not None
    assert caps.looks_up


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (draft_of(relation="none"), "another vocabulary: 310 of its 320 tokens"),
        (draft_of(small_model(architectures=["UnheardForCausalLM"])), "UnheardForCausalLM"),
    ],
    ids=["vocabulary", "architecture"],
)
def test_a_draft_model_that_cannot_draft_is_refused_by_name(draft: DraftModelFiles, message: str) -> None:
    refusals = [each for each in outcome(DRAFTED, draft=draft).ledger.refusals if each.path == "speculative.model"]
    assert any(message in each.message for each in refusals)


@pytest.mark.parametrize("section", ["{method: draft_model}", "{method: suffix, model: ./draft}"])
def test_a_draft_model_and_its_method_need_each_other(section: str) -> None:
    with pytest.raises(SpecError, match="need each other"):
        load(MODEL + f"speculative: {section}\n")
