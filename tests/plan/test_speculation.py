"""What is planned of speculation: who proposes, what it costs in memory, what changes live, and what it excludes."""

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.hardware import load_profiles, select_profile
from appliance.plan.compile import Outcome, run_passes
from appliance.plan.inputs import PlanInputs
from appliance.plan.types import EnginePlan

from .machines import MODEL, load, machine, small_model


def outcome(section: str, *overrides: str) -> Outcome:
    facts = machine()
    profile = select_profile(facts, load_profiles()).profile
    loaded = load(MODEL + section, *overrides)
    return run_passes(PlanInputs(loaded=loaded, facts=facts, profile=profile, model=small_model()))


def planned(section: str, *overrides: str) -> EnginePlan:
    found = outcome(section, *overrides)
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
