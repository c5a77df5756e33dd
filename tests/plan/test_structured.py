"""The structured-output part of a plan: what is decided, what is refused, what is live."""

import pytest

from appliance.base.errors import SpecError
from appliance.plan.serving_types import StructuredPlan
from appliance.plan.types import EnginePlan

from .machines import MODEL, load, plan, qwen


def planned(decoding: str) -> EnginePlan:
    return plan(load(f"{MODEL}decoding: {decoding}\n"), qwen())


def test_auto_is_the_back_end_of_this_version_and_says_why() -> None:
    made = planned("{structured_output: auto}")
    assert made.serving.structured == StructuredPlan(backend="guidance", additional_properties=False)
    (why,) = [each for each in made.decisions if each.path == "serving.structured.backend"]
    assert (why.value, why.source) == ("guidance", "computed")
    named = planned("{structured_output: guidance}").serving.structured
    assert named == StructuredPlan(backend="guidance", at_start=True, additional_properties=False)
    assert planned("{structured_output: none}").serving.structured == StructuredPlan(
        backend=None, additional_properties=False
    )


def test_switches_are_planned() -> None:
    made = planned("{disable_any_whitespace: true, disable_additional_properties: true}").serving.structured
    assert (made.any_whitespace, made.additional_properties) == (False, False)
    assert planned("{disable_additional_properties: false}").serving.structured.additional_properties


def test_a_change_of_the_back_end_is_live() -> None:
    one, other = planned("{structured_output: auto}"), planned("{structured_output: none}")
    assert one.engine_sha256 == other.engine_sha256
    assert one.serving_sha256 != other.serving_sha256


@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
def test_other_back_ends_are_refused_by_name(backend: str) -> None:
    with pytest.raises(SpecError) as refused:
        planned(f"{{structured_output: {backend}}}")
    (found,) = refused.value.diagnostics
    assert found.path == "decoding.structured_output"
    assert backend in found.message
