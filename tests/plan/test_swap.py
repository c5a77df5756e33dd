"""Swap space: how many places it has, what they cost, and what the spec may say of it."""

import pytest

from appliance.base.errors import FitError, SpecError
from appliance.hardware import load_profiles, select_profile
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.swap import PlannedSwap, SwapUnits, plan_swap
from appliance.plan.types import EnginePlan

from .machines import MODEL, decision, load, machine, plan, small_model

SPACE = "hardware: {memory: {swap_space: 1000KiB}}\n"


def planned(text: str) -> EnginePlan:
    return plan(load(MODEL + text))


def test_preempted_sequences_are_computed_again_by_default() -> None:
    found = planned("")
    assert found.cache.swap is None
    assert "hardware.memory.swap_space is 0" in decision(found, "cache.swap").reason


def test_swap_space_is_places_of_a_block_in_the_memory_of_a_cpu() -> None:
    found = planned(SPACE)
    swap, memory = found.cache.swap, found.memory[0]
    assert swap is not None
    assert swap.place_bytes == memory.kv_bytes_per_block
    assert swap.num_places == 1000 * 1024 // swap.place_bytes > 0
    assert swap.num_state_places == 0
    (item,) = (item for item in memory.items if item.name == "swap")
    assert item.size_bytes == swap.num_places * swap.place_bytes
    assert memory.host_items == ()
    assert "would need no copies" in decision(found, "cache.swap").reason


def test_the_spec_may_say_that_tokens_are_computed_again() -> None:
    found = planned(SPACE + "scheduler: {preemption_mode: recompute}\n")
    assert found.cache.swap is None
    assert "swap" not in [item.name for item in found.memory[0].items]


def of_units(units: SwapUnits) -> PlannedSwap:
    facts, loaded = machine(), load(MODEL + SPACE)
    profile = select_profile(facts, load_profiles()).profile
    inputs = PlanInputs(loaded=loaded, facts=facts, profile=profile, model=small_model())
    return plan_swap(inputs, units, 1 << 30, Ledger(loaded))


@pytest.mark.parametrize(
    ("units", "num_places", "num_state_places"),
    [(SwapUnits(1000, 2500, 16), 1024, 3), (SwapUnits(0, 2500, 16), 409, 1)],
)
def test_states_take_as_many_places_as_hold_them(units: SwapUnits, num_places: int, num_state_places: int) -> None:
    found = of_units(units).plan
    assert found is not None
    assert (found.num_places, found.num_state_places) == (num_places, num_state_places)


def test_a_model_that_keeps_nothing_has_no_swap_space() -> None:
    assert of_units(SwapUnits(0, 0, 16)) == PlannedSwap()


def test_a_gpu_has_swap_space_in_the_host() -> None:
    found = plan(load(MODEL + SPACE), facts=machine("nvidia-h100-sxm-80g"))
    assert found.cache.swap is not None
    assert "swap" in [item.name for item in found.memory[0].host_items]
    assert "swap" not in [item.name for item in found.memory[0].items]
    assert "no copies" not in decision(found, "cache.swap").reason


def test_what_does_not_fit_or_holds_nothing_is_refused() -> None:
    with pytest.raises(FitError, match=r"swap space of 1\.00 TiB does not fit"):
        planned("hardware: {memory: {swap_space: 1TiB}}\n")
    with pytest.raises(SpecError, match="hold nothing of a sequence"):
        planned("hardware: {memory: {swap_space: 1KiB}}\n")


def test_each_rank_swaps_its_part_of_a_block() -> None:
    one, two = planned(SPACE), planned(SPACE + "parallelism: {tensor: 2}\n")
    assert one.cache.swap is not None
    assert two.cache.swap is not None
    assert two.cache.swap.place_bytes == two.memory[0].kv_bytes_per_block == one.cache.swap.place_bytes // 2
    assert two.cache.swap.num_places == 2 * one.cache.swap.num_places
