"""What has changed under a running deployment since it was applied. Reads; changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.base.errors import ApplianceError, SpecError
from appliance.base.hashing import sha256_hex
from appliance.deploy.adapters import adapter_drift
from appliance.deploy.probe import ask_metrics
from appliance.deploy.reconcile import Observation, Readiness, changes
from appliance.deploy.state import CurrentState, DeploymentState, Generation
from appliance.deploy.weights import read_weights, weights_text
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.spec.compose import written_text

_NATIVE = Path(__file__).parents[1] / "_native"


@dataclass(frozen=True, slots=True)
class Drift:
    """`kind`: server, spec, weights, adapter, plan, file. `then` and `now` are short: values, digests or times."""

    kind: str
    what: str
    then: Any
    now: Any


def find_drift(state: DeploymentState, seen: Observation) -> list[Drift]:
    """Nothing for a deployment that was not started."""
    if seen.current is None:
        return []
    return list(_found(state.generation(seen.current.generation), seen, seen.current))


def _found(generation: Generation, seen: Observation, current: CurrentState) -> Iterator[Drift]:
    if seen.readiness is not Readiness.READY:
        yield Drift("server", seen.reason or seen.readiness.value, "ready", seen.readiness.value)
    yield from _spec_file(generation, Path(current.spec_file))
    metrics = ask_metrics(current.url) if seen.readiness is Readiness.READY else None
    if (replaced := read_weights(metrics or "")) is not None:
        yield Drift("weights", "the model's weights", "those of the plan", weights_text(replaced))
    if seen.plan is not None:
        for name, then, now in adapter_drift(seen.plan, seen.adapters):
            yield Drift("adapter", name, then, now)
        yield from _planned_anew(generation, current, seen.plan)
        yield from _touched(seen.plan, current.started_at)


def _spec_file(generation: Generation, path: Path) -> Iterator[Drift]:
    """What the file says, with what it includes."""
    then = generation.spec_text
    try:
        now = written_text(path)
    except SpecError as error:
        yield Drift("spec", str(path), _digest(then), str(error))
        return
    if now != then:
        yield Drift("spec", str(path), _digest(then), _digest(now))


def _planned_anew(generation: Generation, current: CurrentState, plan: EnginePlan) -> Iterator[Drift]:
    """The spec as it was applied, planned on the machine and with the files and variables as they are."""
    try:
        now = prepare(
            current.spec_file, generation.overrides, allow_fetch=False, to_run=False, spec_text=generation.spec_text
        ).plan
    except ApplianceError as error:
        yield Drift("plan", "the spec as it was applied", "it could be planned", str(error))
        return
    for change in changes(plan, now):
        then, value = ("***", "***") if change.is_secret else (change.old, change.new)
        yield Drift("plan", change.path, then, value)


def _touched(plan: EnginePlan, started_at: float) -> Iterator[Drift]:
    """Files that the running processes have mapped or read, and that were written since."""
    for path in _files(plan):
        try:
            written = path.stat().st_mtime
        except OSError as error:
            yield Drift("file", str(path), "there", error.strerror)
            continue
        if written > started_at:
            yield Drift("file", str(path), "older than the server", "written since it started")


def _files(plan: EnginePlan) -> Iterator[Path]:
    model = Path(plan.model.path)
    if model.is_dir():
        yield from sorted(path for path in model.iterdir() if path.is_file())
    else:
        yield model
    yield from sorted(_NATIVE.glob("*.so"))


def _digest(text: str) -> str:
    return f"sha256:{sha256_hex(text.encode())[:12]}"
