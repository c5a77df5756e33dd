"""Part of pass `memory`: the swap space, in which preempted sequences leave their blocks and states."""

import msgspec

from appliance.base.units import format_size
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.types import MemoryItem, SwapPlan

SPACE, MODE = "hardware.memory.swap_space", "scheduler.preemption_mode"


class SwapUnits(msgspec.Struct, frozen=True):
    """The bytes that move at once; 0 for what a model does not have. block_size: tokens of a block."""

    block_bytes: int
    state_bytes: int
    block_size: int


class PlannedSwap(msgspec.Struct, frozen=True):
    """`plan` is None where preempted sequences are computed again; there is no item then either."""

    plan: SwapPlan | None = None
    items: tuple[MemoryItem, ...] = ()


def plan_swap(inputs: PlanInputs, units: SwapUnits, left: int, ledger: Ledger) -> PlannedSwap:
    """Decides what becomes of preempted sequences. left: of the memory of a CPU; a GPU has swap space in the host's."""
    left = left if inputs.profile.device == "cpu" else inputs.facts.memory.limit_bytes
    mode, space = inputs.spec.scheduler.preemption_mode, int(inputs.spec.hardware.memory.swap_space)
    place_bytes = units.block_bytes or units.state_bytes
    if mode == "recompute":
        return _computed_again(MODE, ledger)
    if not space:
        return _computed_again(SPACE, ledger)
    if not place_bytes:
        message = "this model keeps nothing from one step to the next, so there is nothing to swap"
        ledger.refuse(SPACE, "plan/swap", message, allowed="0", hint=f"remove {SPACE}")
        return PlannedSwap()
    plan = SwapPlan(
        num_places=space // place_bytes,
        place_bytes=place_bytes,
        num_state_places=-(-units.state_bytes // place_bytes),
    )
    if plan.num_places <= plan.num_state_places:
        least = format_size((plan.num_state_places + 1) * place_bytes)
        message = f"{format_size(space)} of swap space hold nothing of a sequence, which has at least {least}"
        ledger.refuse(SPACE, "plan/swap", message, allowed=f"at least {least}", hint=f"write {least}, or more")
        return PlannedSwap()
    item = _item(plan, units)
    if item.size_bytes > left:
        message = f"swap space of {format_size(item.size_bytes)} does not fit: {format_size(max(0, left))} are left"
        ledger.misfit(SPACE, "plan/fit", message, allowed=f"at most {format_size(max(0, left))}")
        return PlannedSwap()
    ledger.take("cache.swap", SPACE, plan.num_places, _reason(inputs, plan, units))
    return PlannedSwap(plan, (item,))


def _computed_again(path: str, ledger: Ledger) -> PlannedSwap:
    reason = {MODE: f"{MODE}: recompute", SPACE: f"{SPACE} is 0, so preempted sequences are computed again"}
    ledger.take("cache.swap", path, None, reason[path])
    return PlannedSwap()


def _item(plan: SwapPlan, units: SwapUnits) -> MemoryItem:
    held = "a block" if units.block_bytes else "the states of a sequence"
    states = f"; the states of a sequence take {plan.num_state_places}" if plan.num_state_places > 1 else ""
    formula = f"{plan.num_places:,} places x {format_size(plan.place_bytes)} ({held}{states})"
    return MemoryItem(name="swap", size_bytes=plan.num_places * plan.place_bytes, formula=formula)


def _reason(inputs: PlanInputs, plan: SwapPlan, units: SwapUnits) -> str:
    """Says what swap space gains: sequences are copied where that takes less time, as measured while it runs."""
    holds = f"{plan.num_places:,} blocks of {units.block_size} tokens" if units.block_bytes else "states of sequences"
    reason = f"{SPACE}: {holds} of preempted sequences, copied where that takes less time than to compute them again"
    if inputs.profile.device != "cpu" or not units.block_bytes:
        return reason
    return f"{reason}; as blocks of the cache, in hardware.memory.kv_cache, the same bytes would need no copies"
