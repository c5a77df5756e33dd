"""What has to happen so that the planned server runs. Pure: observation and plan in, actions with causes out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from appliance.deploy.state import CurrentState
from appliance.plan.types import EnginePlan

# Words, digests, what is derived from other fields, and what a server does not read.
_NOT_COMPARED = (
    *("decisions", "spec_sha256", "engine_sha256", "serving_sha256"),
    *("memory", "hardware", "hardware_sha256", "profile", "batch", "bench"),
)


class Readiness(StrEnum):
    ABSENT = "absent"  # nothing was started
    DEAD = "dead"  # it was started, and its process is gone
    FAILED = "failed"  # it runs, and will not take requests again by itself
    NOT_READY = "not ready"  # it runs and does not take requests yet
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`plan` is the one of the running generation; None when it cannot be read."""

    readiness: Readiness
    reason: str = ""
    current: CurrentState | None = None
    plan: EnginePlan | None = None


class Verb(StrEnum):
    KEEP = "keep"
    WAIT = "wait"
    STOP = "stop"
    START = "start"


@dataclass(frozen=True, slots=True)
class Action:
    verb: Verb
    cause: str


@dataclass(frozen=True, slots=True)
class Change:
    path: str  # of the plan
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.path.startswith("serving.key_hashes."):
            return self.path
        return f"{self.path}: {_shown(self.old)} -> {_shown(self.new)}"


def reconcile(seen: Observation, wanted: EnginePlan) -> tuple[Action, ...]:
    """The actions, in order."""
    if seen.readiness is Readiness.ABSENT:
        return (Action(Verb.START, "nothing runs"),)
    if seen.readiness is Readiness.DEAD:
        return (Action(Verb.START, seen.reason or "its server has ended"),)
    cause = seen.reason if seen.readiness is Readiness.FAILED else _why_replaced(seen, wanted)
    if cause is not None:
        return Action(Verb.STOP, cause), Action(Verb.START, cause)
    if seen.readiness is Readiness.NOT_READY:
        return (Action(Verb.WAIT, seen.reason or "it is starting"),)
    return (Action(Verb.KEEP, "the same plan runs and is ready"),)


def changes(old: EnginePlan, new: EnginePlan) -> list[Change]:
    """Every planned value that differs and that a server reads, in the order of the plan."""
    before, after = dict(_flat(msgspec.to_builtins(old))), dict(_flat(msgspec.to_builtins(new)))
    paths = [*before, *(path for path in after if path not in before)]
    return [Change(p, before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)]


def _why_replaced(seen: Observation, wanted: EnginePlan) -> str | None:
    """None when the running server already is what is wanted."""
    if seen.plan is None:
        return "the plan of the running server cannot be read"
    if (seen.plan.engine_sha256, seen.plan.serving_sha256) == (wanted.engine_sha256, wanted.serving_sha256):
        return None
    found = changes(seen.plan, wanted)
    if not found:
        return None
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return "changed " + "; ".join(map(str, found[:3])) + more


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, below in value.items():
        if path or key not in _NOT_COMPARED:
            yield from _flat(below, f"{path}.{key}" if path else str(key))


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
