"""Applying plans of the scripted engine: real server and engine processes, no model."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.execute import stop
from appliance.deploy.launch import server_command
from appliance.deploy.observe import observe
from appliance.deploy.process import descendants, is_running
from appliance.deploy.reconcile import Readiness, Verb
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from appliance.plan.boot import read_boot_report
from appliance.plan.types import EnginePlan
from tests.deploy.applying import Heard, apply, ask, wanted
from tests.server.harness import says, wait_until

ROOT = Path(__file__).parents[2]


def test_apply_starts_keeps_replaces_and_stops(state: DeploymentState, tmp_path: Path) -> None:
    heard = Heard()
    first = apply(state, wanted(tmp_path / "a"), heard)
    assert first.is_changed
    assert [action.verb for action in heard.actions] == [Verb.START]
    assert ask(first.current.url) == "hello world"
    assert {"spawn", "import", "connect", "ready"} <= {phase.name for phase in first.phases}
    assert read_boot_report(state.folder).num_blocks == 256  # what `plan --verify` reads

    again = apply(state, wanted(tmp_path / "a"))
    assert not again.is_changed
    assert again.current.process == first.current.process

    heard = Heard()
    changed = apply(state, wanted(tmp_path / "a", max_num_seqs=4), heard)
    [action] = heard.actions
    assert (action.verb, action.cause) == (Verb.SWAP, "changed scheduler.max_num_seqs: 8 -> 4")
    assert changed.how == "beside"
    assert changed.current.generation == 2
    assert not is_running(first.current.process)
    assert ask(changed.current.url) == "hello world"

    family = [changed.current.process, *descendants(changed.current.process)]
    assert len(family) == 2  # the server and its engine
    assert stop(state, changed.current, changed_plan(state))
    assert not any(is_running(each) for each in family)
    assert observe(state).readiness is Readiness.ABSENT


def changed_plan(state: DeploymentState) -> EnginePlan:
    plan = observe(state).plan
    assert plan is not None
    return plan


def test_a_server_that_cannot_start_leaves_a_reason_and_nothing_else(state: DeploymentState, tmp_path: Path) -> None:
    broken = wanted(tmp_path / "a")
    (tmp_path / "a" / "script.json").write_text("not a script")
    with pytest.raises(ApplyError) as failure:
        apply(state, broken)
    assert str(failure.value).startswith("the server did not start: JSON is malformed")
    assert failure.value.hint == "appliance logs scripted --generation 1"
    assert observe(state).readiness is Readiness.ABSENT


@pytest.mark.parametrize("how", ["beside", "in place"])
def test_a_failed_replacement_leaves_the_old_generation(state: DeploymentState, tmp_path: Path, how: str) -> None:
    first = apply(state, wanted(tmp_path / "a"))
    broken = wanted(tmp_path / "b", max_num_seqs=4)
    (tmp_path / "b" / "script.json").write_text("not a script")
    told = {"beside": "generation 1 has served throughout", "in place": "generation 1 serves again"}[how]
    with pytest.raises(ApplyError, match=told):
        apply(state, broken, has_room=how == "beside")
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.how, result.replaced) == ("failed", how, 1)
    assert "JSON is malformed" in result.reason
    seen = observe(state)
    assert seen.current is not None
    assert not seen.current.leftover
    assert (seen.current.process == first.current.process) == (how == "beside")
    assert seen.readiness is Readiness.READY
    assert seen.current is not None
    assert seen.current.generation == first.current.generation
    assert ask(seen.current.url) == "hello world"


def test_waiting_ends_with_a_reason_and_ends_the_server(state: DeploymentState, tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="not ready after 1 s"):
        apply(state, wanted(tmp_path / "a", Script(load_seconds=60.0)), timeout_s=1.0)
    assert state.current() is None


def test_a_dead_server_is_replaced(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a"))
    server = first.current.process
    processes = [server, *descendants(server)]
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, processes)), "the engine outlives its server")
    seen = observe(state)
    assert seen.readiness is Readiness.DEAD
    assert "has ended" in seen.reason
    assert apply(state, wanted(tmp_path / "a")).current.generation == 2


def test_folders_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APPLIANCE_CACHE", "cache")
    monkeypatch.setenv("PYTHONPATH", f"plugins::{ROOT}")
    state = DeploymentState(Path("state"), "scripted")
    state.create()
    result = apply(state, wanted(tmp_path / "a"))
    environment = Path(f"/proc/{result.current.process.pid}/environ").read_bytes().split(b"\0")
    stop(state, result.current, None)
    assert f"APPLIANCE_CACHE={tmp_path}/cache".encode() in environment
    assert f"PYTHONPATH={tmp_path}/plugins:{ROOT}".encode() in environment
    assert (tmp_path / "state" / "scripted" / "generations" / "0001" / "status.jsonl").is_file()


def test_a_server_that_gave_its_engine_up_is_replaced(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a"))  # its engine is never started again
    [engine] = descendants(first.current.process)
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: observe(state).readiness is Readiness.FAILED, "the loss of the engine is not told")
    assert "SIGKILL" in observe(state).reason
    second = apply(state, wanted(tmp_path / "a"))
    assert second.current.generation == 2
    assert ask(second.current.url) == "hello world"


APPLY = """
import sys
from pathlib import Path
import msgspec
from appliance.deploy.execute import Applier, DesiredState
from appliance.deploy.phases import PhaseClock
from appliance.deploy.state import DeploymentState
from appliance.plan.types import EnginePlan

class Mute:
    def action(self, action): pass
    def phase(self, name): print(name, flush=True)
    def progress(self, done, total): pass
    def warning(self, text): pass

plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EnginePlan)
state = DeploymentState(Path(sys.argv[2]), plan.name)
wanted = DesiredState(plan=plan, spec_file="", spec_text="")
Applier(state=state, reporter=Mute(), phases=PhaseClock("resolve"), timeout_s=60.0).apply(wanted)
"""


@pytest.mark.parametrize("phase", ["spawn", "import", "connect"])
def test_a_killed_apply_is_taken_up_by_the_next(state: DeploymentState, tmp_path: Path, phase: str) -> None:
    what = wanted(tmp_path / "a", Script(load_seconds=0.5, replies=[says("greet", "hello world")]))
    plan = tmp_path / "plan.json"
    plan.write_bytes(msgspec.json.encode(what.plan))
    command = [sys.executable, "-c", APPLY, str(plan), str(state.folder.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.strip() == phase:
                break
        killed.kill()
    before = state.current()
    result = apply(state, what)
    assert ask(result.current.url) == "hello world"
    if before is not None and not result.is_changed:
        assert result.current.process == before.process  # adopted
    mine = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_server_of(int(pid), state)]
    assert mine == [str(result.current.process.pid)]


def is_server_of(pid: int, state: DeploymentState) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"appliance.server" in arguments and any(str(state.folder).encode() in each for each in arguments)


def test_the_server_runs_as_the_command_says(state: DeploymentState) -> None:
    assert server_command(state.generation(7))[1:4] == ["-m", "appliance.server", "--plan"]
