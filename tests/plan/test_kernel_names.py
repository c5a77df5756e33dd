"""Kernel sets and attention by name: what is ruled out is not chosen, and a name that nothing has is refused."""

import pytest

from appliance.base.errors import SpecError
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.plan.types import EnginePlan

from .machines import MODEL, load, plan


def planned(**kernels: str) -> EnginePlan:
    return plan(load(MODEL, *(f"hardware.kernels.{name}={value}" for name, value in kernels.items())))


def refused(**kernels: str) -> str:
    with pytest.raises(SpecError) as caught:
        planned(**kernels)
    return caught.value.report()


def test_a_set_that_is_ruled_out_is_not_chosen() -> None:
    first = planned()
    best = first.kernels.kernel_set
    second = planned(disabled=f"[{best}]")
    assert second.kernels.kernel_set != best
    assert second.engine_sha256 != first.engine_sha256
    assert {choice.refused[best] for choice in second.kernels.choices} == {"hardware.kernels.disabled lists it"}


def test_names_that_no_set_has_are_refused_with_those_there_are() -> None:
    report = refused(disabled="[MarlinLinear]")
    assert "no kernel set is named 'MarlinLinear'" in report
    assert "cpu-generic" in report


def test_something_has_to_be_left() -> None:
    best = planned().kernels.kernel_set
    assert "lists it" in refused(disabled=f"[{best}]", kernel_set=best)
    every = [each.name for each in KERNEL_SETS.values() if each.runs == "programs"]
    assert "no kernel set for cpu is left to choose" in refused(disabled=f"[{', '.join(every)}]")


def test_attention_has_the_name_that_the_plan_gives_it() -> None:
    best = planned().kernels.kernel_set
    assert planned(attention_backend=best).kernels == planned().kernels
    assert planned(attention_backend="torch", kernel_set="torch").kernels.kernel_set == "torch"
    report = refused(attention_backend="FLASH_ATTN")
    assert f"attention runs by {best} here" in report
    assert f"auto, {best}" in report
