"""Changes of the set of adapters that requests ask for, as changes of the plan. Pure: a plan in, a plan out."""

from typing import Literal

import msgspec

from appliance.base.errors import ApplianceError
from appliance.plan.hashes import with_hashes
from appliance.plan.types import AdapterPlan, AdaptersPlan, EnginePlan

Problem = Literal["known", "unknown", "model", "full", "unplanned", "refused"]


class AdapterSetError(ApplianceError):
    """The set cannot be changed like that. problem: known (the name is served already), unknown (it is not), model (it
    is the model's own name), full (no more may be in memory), unplanned (the plan has no places for adapters), refused
    (the engine cannot serve it)."""

    def __init__(self, problem: Problem, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.problem = problem


class AdapterChange(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter more, or one less, or other scales by name. replaces: an adapter of the same name gives way to
    `load`. Where no more fit, and `load` was found when it was named, others that were found like this give way.
    recent: those of them that were used lately, the last one last."""

    load: AdapterPlan | None = None
    unload: str | None = None
    replaces: bool = False
    recent: tuple[str, ...] = ()
    scales: dict[str, float] | None = None


def changed_set(plan: EnginePlan, change: AdapterChange) -> EnginePlan:
    """Returns the plan with the changed set. Raises AdapterSetError."""
    adapters = plan.adapters
    if adapters is None:
        raise AdapterSetError("unplanned", "there are no places for adapters here", hint="add `lora` to the spec")
    served = list(adapters.served)
    if change.unload is not None:
        if adapters.named(change.unload) is None:
            raise AdapterSetError("unknown", f"the adapter {change.unload!r} is not served")
        served = [each for each in served if each.name != change.unload]
    if change.scales is not None:
        unknown = next((name for name in change.scales if adapters.named(name) is None), None)
        if unknown is not None:
            raise AdapterSetError("unknown", f"the adapter {unknown!r} is not served")
        served = [msgspec.structs.replace(each, scale=change.scales.get(each.name, each.scale)) for each in served]
    if change.load is not None:
        served = _with(plan, adapters, served, change.load, change)
    return with_hashes(msgspec.structs.replace(plan, adapters=msgspec.structs.replace(adapters, served=tuple(served))))


def _with(
    plan: EnginePlan, adapters: AdaptersPlan, served: list[AdapterPlan], new: AdapterPlan, change: AdapterChange
) -> list[AdapterPlan]:
    if new.name in plan.model.served_names:
        raise AdapterSetError("model", f"{new.name!r} is the base model's name")
    at = next((number for number, each in enumerate(served) if each.name == new.name), None)
    if at is not None:
        if not change.replaces:
            raise AdapterSetError("known", f"the adapter {new.name!r} is served already")
        served[at] = msgspec.structs.replace(new, scale=served[at].scale, pinned=served[at].pinned)
        return served
    going = _going(served, change.recent) if new.origin == "lookup" else []
    served = [*served, new]
    while len({each.sha256 for each in served}) > adapters.max_cpu_loras:
        if not going:
            message = f"{adapters.max_cpu_loras} adapters may be in memory, and as many are"
            raise AdapterSetError("full", message, hint="unload one, or raise lora.max_cpu_loras")
        name = going.pop(0)
        served = [each for each in served if each.name != name]
    return served


def _going(served: list[AdapterPlan], recent: tuple[str, ...]) -> list[str]:
    """Returns the names of adapters that may give way, those that were used longest ago first."""
    found = [each.name for each in served if each.origin == "lookup"]
    return sorted(found, key=lambda name: recent.index(name) if name in recent else -1)
