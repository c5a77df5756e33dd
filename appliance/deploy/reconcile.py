"""What has to happen so that the planned server runs. Pure: observation and plan in, actions with causes out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from appliance.deploy.adapters import by_name, shown_whole, with_served
from appliance.deploy.classes import cost_of, highest
from appliance.deploy.state import CurrentState
from appliance.engine.adapter_messages import AdapterReport
from appliance.plan.types import EnginePlan
from appliance.spec.fields import ApplyClass

# Words, digests, what is derived from other fields, and what a server does not read.
_NOT_COMPARED = (
    *("decisions", "spec_sha256", "engine_sha256", "adapters_sha256", "serving_sha256"),
    *("memory", "hardware", "hardware_sha256", "profile", "batch", "bench"),
)
_SHOWN_CHANGES = 3
_RELOADED: Final[tuple[ApplyClass, ...]] = ("live", "adapters")  # the running server and its engine take these


class Readiness(StrEnum):
    ABSENT = "absent"  # nothing was started
    DEAD = "dead"  # it was started, and its process is gone
    FAILED = "failed"  # it runs, and will not take requests again by itself
    NOT_READY = "not ready"  # it runs and does not take requests yet
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`plan` is the one of the running generation; None when it cannot be read. `adapters` are those that the server
    says it serves, which requests may have changed; None when it said nothing.

    `is_unsure`: a reload was interrupted, and the server may follow a plan that differs from it in what is live.
    """

    readiness: Readiness
    reason: str = ""
    current: CurrentState | None = None
    plan: EnginePlan | None = None
    adapters: tuple[AdapterReport, ...] | None = None
    is_unsure: bool = False


class Verb(StrEnum):
    KEEP = "keep"
    WAIT = "wait"
    RELOAD = "reload"  # the running server takes the new plan; engine, cache and open streams stay
    SWAP = "swap"  # a new server takes over from the running one
    STOP = "stop"
    START = "start"


@dataclass(frozen=True, slots=True)
class PlanChange:
    path: str  # of the plan
    old: Any
    new: Any

    @property
    def apply(self) -> ApplyClass:
        return cost_of(self.path, self.old, self.new)

    @property
    def is_secret(self) -> bool:
        return self.path.startswith("serving.auth.key_hashes.")

    def __str__(self) -> str:
        return self.path if self.is_secret else f"{self.path}: {shown(self.old)} -> {shown(self.new)}"


@dataclass(frozen=True, slots=True)
class Action:
    """`apply` and `changes` say what a changed plan costs, and why."""

    verb: Verb
    cause: str
    apply: ApplyClass | None = None
    changes: tuple[PlanChange, ...] = ()


def reconcile(seen: Observation, wanted: EnginePlan) -> tuple[Action, ...]:
    """The actions, in order."""
    if seen.readiness is Readiness.ABSENT:
        return (Action(Verb.START, "nothing runs"),)
    if seen.readiness is Readiness.DEAD:
        return (Action(Verb.START, seen.reason or "its server has ended"),)
    if seen.readiness is Readiness.FAILED:
        return _replaced(seen.reason)
    if seen.plan is None:
        return _replaced("the plan of the running server cannot be read")
    found = changes(with_served(seen.plan, seen.adapters), wanted)
    if found:
        return _changed(seen.readiness, found)
    if seen.readiness is Readiness.NOT_READY:
        return (Action(Verb.WAIT, seen.reason or "it is starting"),)
    if seen.is_unsure:
        return (Action(Verb.RELOAD, "an apply was interrupted while the server took another plan", "live"),)
    return (Action(Verb.KEEP, "the same plan runs and is ready"),)


def _changed(readiness: Readiness, found: Sequence[PlanChange]) -> tuple[Action, ...]:
    apply = highest(change.apply for change in found)
    cause = _because(found)
    if readiness is not Readiness.READY:  # it serves no request yet
        return Action(Verb.STOP, cause, apply, tuple(found)), Action(Verb.START, cause)
    verb = Verb.RELOAD if apply in _RELOADED else Verb.SWAP
    return (Action(verb, cause, apply, tuple(found)),)


def _replaced(cause: str) -> tuple[Action, ...]:
    return Action(Verb.STOP, cause), Action(Verb.START, cause)


def changes(old: EnginePlan, new: EnginePlan) -> list[PlanChange]:
    """Every planned value that differs and that a server reads, in the order of the plan."""
    flat = (dict(_flat(by_name(msgspec.to_builtins(plan)))) for plan in (old, new))
    before, after = shown_whole(*flat)
    paths = [*before, *(path for path in after if path not in before)]
    return [PlanChange(p, before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)]


def _because(found: Sequence[PlanChange]) -> str:
    more = f" (and {len(found) - _SHOWN_CHANGES} more)" if len(found) > _SHOWN_CHANGES else ""
    return "changed " + "; ".join(map(str, found[:_SHOWN_CHANGES])) + more


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, below in value.items():
        if path or key not in _NOT_COMPARED:
            yield from _flat(below, f"{path}.{key}" if path else str(key))


def shown(value: Any) -> str:
    """One short line."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
