"""`appliance apply`: makes the running deployment match the spec."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.environ import state_dir
from appliance.base.errors import ApplyError, ExitCode
from appliance.catalog.tokenizer_modes import MISTRAL_COMMON
from appliance.cli.arguments.lifecycle import ApplyArguments
from appliance.cli.curl import CHAT_PATH, COMPLETION_PATH, curl_line, example_of_pooling
from appliance.cli.ending import ended_in_order
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import spec_target
from appliance.deploy.execute import Applier, ApplyResult, DesiredState
from appliance.deploy.launch import server_command
from appliance.deploy.listeners import require_free
from appliance.deploy.lock import changing
from appliance.deploy.observe import observe
from appliance.deploy.phases import PhaseClock, table
from appliance.deploy.process import identify
from appliance.deploy.reconcile import Action, Readiness, Verb
from appliance.deploy.starting import describe
from appliance.deploy.state import DeploymentState, Result
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan, ModelPlan

LOCK_WAIT_S = 600.0
_HOW = {
    "reload": ", changed as it runs,",
    "rolling": ", its engines replaced one after the other,",
    "beside": ", in place of the one before, which served until then,",
    "in place": ", after the one before had ended,",
}


def run(arguments: ApplyArguments) -> int:
    """Applies a spec. Raises ApplyError (4) if it does not become ready, LockError (2) if it differs from the lock."""
    phases = PhaseClock("resolve")
    printer = Printer(quiet=arguments.as_json)
    printer.phase("resolve")
    spec, overrides = spec_target(arguments.spec, arguments.overrides)
    with ProgressBar() as bar:
        prepared = prepare(spec, overrides, progress=bar)
    if arguments.locked:
        _require_locked(spec, prepared.plan)
    phases.begin("plan")
    for warning in prepared.loaded.warnings:
        print(f"warning: {warning.message}", file=sys.stderr)
    for text in prepared.plan.warnings:
        print(f"warning: {text}", file=sys.stderr)
    wanted = DesiredState(
        plan=prepared.plan,
        spec_file=str(Path(spec).resolve()),
        spec_text=prepared.loaded.text,
        spec_data=prepared.loaded.resolved(),
        overrides=overrides,
    )
    return bring_about(wanted, arguments, printer, phases)


def _require_locked(spec: str, plan: EnginePlan) -> None:
    from appliance.deploy.pins.collect import collect_lock  # it imports kernels, which only this option needs
    from appliance.deploy.pins.lockfile import lock_path, require_same

    require_same(lock_path(Path(spec)), collect_lock(plan))


def bring_about(wanted: DesiredState, arguments: ApplyArguments, printer: "Printer", phases: PhaseClock) -> int:
    """Applies a finished plan, and prints how to call the server. Raises ApplyError."""
    printer.counts = wanted.plan.model.show_load_progress
    state = DeploymentState(state_dir(), wanted.plan.name)
    state.create()
    with changing(state.lock_path, _command_line(), LOCK_WAIT_S, printer.waiting), ended_in_order():
        applier = Applier(state=state, reporter=printer, phases=phases, timeout_s=arguments.timeout_s)
        if arguments.foreground:
            applier.tidy()
            _become_the_server(state, wanted)
        result = applier.apply(wanted)
    printer.clear()
    print(_as_json(result) if arguments.as_json else _as_text(result, wanted.plan))
    return ExitCode.OK


def _become_the_server(state: DeploymentState, wanted: DesiredState) -> None:
    """Turns this process into the server, with the same pid and output, for containers and systemd."""
    seen = observe(state)
    if seen.readiness is not Readiness.DEAD and seen.current is not None:
        pid = seen.current.process.pid
        raise ApplyError(
            f"{state.name} runs in the background already (pid {pid})", hint=f"appliance down {state.name}"
        )
    require_free(wanted.plan.serving.listen)
    generation = state.new_generation(
        wanted.plan, wanted.spec_text, wanted.spec_data, wanted.overrides, wanted.spec_file
    )
    process = identify(os.getpid())
    assert process is not None
    current = describe(wanted.plan, generation, process, wanted.spec_file)
    state.write_current(current)
    generation.write_result(
        Result(outcome="serving", how="foreground", cause="asked for", at=current.started_at, seconds=0.0)
    )
    print(f"{state.name}: serving on {current.url} in the foreground", file=sys.stderr, flush=True)
    command = server_command(generation)
    os.execv(command[0], command)


def _as_text(result: ApplyResult, plan: EnginePlan) -> str:
    current = result.current
    path, asked = _example(plan.model)
    body = {"model": current.served_name, **asked}
    what = f"{current.name} is ready" if result.is_changed else f"{current.name}: no change"
    what += _HOW.get(result.how, "")
    talk = f"appliance chat {current.name}    " if plan.model.pooling is None else ""
    lines = [
        f"{what} at {current.url} (generation {current.generation}, pid {current.process.pid})",
        "",
        table(result.phases),
        "",
        curl_line(current.url, path, body, needs_key=current.needs_key),
        f"{talk}appliance status    appliance logs -f    appliance down {current.name}",
    ]
    return "\n".join(lines)


def _example(model: ModelPlan) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a first request."""
    if model.pooling is not None:
        return example_of_pooling(model.pooling)
    if model.chat_template is not None or model.tokenizer_mode == MISTRAL_COMMON:
        return CHAT_PATH, {"messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    return COMPLETION_PATH, {"prompt": "Once upon a time", "stream": True}


def _as_json(result: ApplyResult) -> str:
    body = {
        "name": result.current.name,
        "changed": result.is_changed,
        "how": result.how,
        "actions": [{"verb": each.verb.value, "cause": each.cause, "apply": each.apply} for each in result.actions],
        "url": result.current.url,
        "pid": result.current.process.pid,
        "generation": result.current.generation,
        "phases": {phase.name: round(phase.seconds, 3) for phase in result.phases},
    }
    return msgspec.json.format(msgspec.json.encode(body)).decode()


def _command_line() -> str:
    return shlex.join(["appliance", *sys.argv[1:]])


def _is_terminal() -> bool:
    """Returns whether stderr is a terminal. Called for each printer, as stderr may have been replaced."""
    return sys.stderr.isatty()


@dataclass(slots=True)
class Printer:
    """Prints progress on stderr: one line that changes on a terminal, else one line per phase."""

    quiet: bool
    is_terminal: bool = field(default_factory=_is_terminal)
    name: str = ""
    counts: bool = True  # show the progress within a phase

    def action(self, action: Action) -> None:
        if not self.quiet and action.verb is not Verb.KEEP:
            self.clear()
            print(f"{action.verb}: {action.cause}", file=sys.stderr)

    def phase(self, name: str) -> None:
        if name != self.name:
            self.name = name
            self._show(name)

    def progress(self, done: int, total: int) -> None:
        if total and self.is_terminal and self.counts:
            self._show(f"{self.name} {100 * done // total} %")

    def warning(self, text: str) -> None:
        self.clear()
        print(f"warning: {text}", file=sys.stderr)

    def waiting(self, owner: str) -> None:
        print(f"waiting for {owner}", file=sys.stderr)

    def clear(self) -> None:
        if self.is_terminal and not self.quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        if not self.quiet:
            self.clear()
            print(f"  {text} ...", end="" if self.is_terminal else "\n", file=sys.stderr, flush=True)
