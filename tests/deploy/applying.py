"""Applying plans of the scripted engine: real server and engine processes, no model."""

from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from appliance.deploy.execute import Applier, ApplyResult, DesiredState
from appliance.deploy.phases import PhaseClock
from appliance.deploy.reconcile import Action
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from appliance.plan.hashes import with_hashes
from appliance.plan.prepare import Prepared
from appliance.plan.types import EnginePlan
from tests.server.harness import says, write_plan


@dataclass
class Heard:
    actions: list[Action] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def action(self, action: Action) -> None:
        self.actions.append(action)

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def progress(self, done: int, total: int) -> None: ...

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def wanted(folder: Path, script: Script | None = None, **changes: object) -> DesiredState:
    folder.mkdir(parents=True, exist_ok=True)
    path = write_plan(folder, script or Script(replies=[says("greet", "hello world")]), **changes)
    plan = with_hashes(msgspec.json.decode(path.read_bytes(), type=EnginePlan))
    return DesiredState(plan=plan, spec_file="spec.yaml", spec_text="name: scripted\n")


def as_wanted(prepared: Prepared) -> DesiredState:
    """What a spec asks for, as the verb makes it."""
    loaded = prepared.loaded
    return DesiredState(plan=prepared.plan, spec_file="spec.yaml", spec_text=loaded.text, spec_data=loaded.resolved())


def apply(
    state: DeploymentState,
    what: DesiredState,
    heard: Heard | None = None,
    timeout_s: float = 60.0,
    has_room: bool = True,
) -> ApplyResult:
    applier = Applier(
        state=state,
        reporter=heard or Heard(),
        phases=PhaseClock("resolve"),
        timeout_s=timeout_s,
        has_room=lambda plan: has_room,
    )
    return applier.apply(what)


def ask(url: str) -> str:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20.0).raise_for_status().json()
    text: str = answer["choices"][0]["message"]["content"]
    return text
