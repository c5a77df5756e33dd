"""What an apply would do, and what it would cost. Reads; changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.deploy.follow import EventReader
from appliance.deploy.reconcile import Action, Observation, Verb, reconcile
from appliance.deploy.rolling import can_roll
from appliance.deploy.room import has_room
from appliance.deploy.start_events import STATUS_FILE
from appliance.deploy.state import DeploymentState
from appliance.plan.types import EnginePlan
from appliance.spec.fields import ApplyClass
from appliance.spec.paths import parse_path
from appliance.spec.tree import find

_HOW = {
    "kept": "nothing to do",
    "start": "a server starts",
    "reload": "the running server takes the new plan; engine, cache and open streams stay",
    "rolling": "the replicas start anew with the new plan, one after the other, while the others serve",
    "beside": "a new server starts beside the running one and takes its socket over",
    "in place": "memory does not hold two engines: the running server ends first, and connections wait for the new one",
    "replace": "the running server, which takes no requests, is ended, and a new one starts",
}


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of the spec, resolved; secrets are masked."""

    path: str
    old: Any
    new: Any
    apply: ApplyClass


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChanges:
    """`unavailable_s`: how long no request is answered; None where nothing has been measured yet."""

    name: str
    generation: int  # that runs; 0 is none
    actions: tuple[Action, ...]
    fields: tuple[FieldChange, ...]
    how: str
    unavailable_s: float | None

    @property
    def is_pending(self) -> bool:
        return self.how != "kept"

    @property
    def description(self) -> str:
        return _HOW[self.how]


def difference(
    state: DeploymentState, seen: Observation, wanted: EnginePlan, spec_data: Mapping[str, Any]
) -> PendingChanges:
    """`spec_data` as of DesiredState."""
    actions = reconcile(seen, wanted)
    current = seen.current
    before = state.generation(current.generation).spec_data() if current is not None else None
    how = _how(actions, seen.plan, wanted)
    return PendingChanges(
        name=state.name,
        generation=current.generation if current is not None else 0,
        actions=actions,
        fields=tuple(field_changes(before, spec_data)) if before is not None else (),
        how=how,
        unavailable_s=_last_start_s(state, seen) if how in ("in place", "replace") else 0.0,
    )


def field_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Every field whose resolved value differs, in the order of the spec."""
    before, after = dict(_fields(old)), dict(_fields(new))
    for path in [*before, *(path for path in after if path not in before)]:
        if before.get(path) != after.get(path):
            found = find(parse_path(path))
            apply: ApplyClass = found.doc.apply if found is not None else "restart"
            yield FieldChange(path, before.get(path), after.get(path), apply)


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Sections are walked, and lists of sections; everything else is one value."""
    if isinstance(value, Mapping) and (not path or _is_section(path)):
        for key, below in value.items():
            yield from _fields(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping) and _is_section(path):
        for index, item in enumerate(value):
            yield from _fields(item, f"{path}[{index}]")
    else:
        yield path, value


def _is_section(path: str) -> bool:
    found = find(parse_path(path))
    return found is not None and found.child is not None


def _how(actions: tuple[Action, ...], running: EnginePlan | None, wanted: EnginePlan) -> str:
    match [action.verb for action in actions]:
        case [Verb.KEEP] | [Verb.WAIT]:
            return "kept"
        case [Verb.START]:
            return "start"
        case [Verb.RELOAD]:
            return "reload"
        case [Verb.SWAP]:
            if running is not None and can_roll(running, actions[0].changes):
                return "rolling"
            return "beside" if has_room(wanted) else "in place"
        case _:
            return "replace"


def _last_start_s(state: DeploymentState, seen: Observation) -> float | None:
    """How long the running server took from its beginning until it was ready."""
    if seen.current is None:
        return None
    home = state.generation(seen.current.home_generation)
    times = {event.name: event.time for event in EventReader(home.folder / STATUS_FILE).read()}
    if "process" not in times or "ready" not in times:
        return None
    return round(times["ready"] - times["process"], 2)
