"""A broken generation, a full disk, an interruption: what served before serves, and the history says why."""

import dataclasses
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplyError, ExitCode
from appliance.cli import down, history
from appliance.deploy import state as state_module
from appliance.deploy.execute import DesiredState
from appliance.deploy.lock import changing
from appliance.deploy.observe import observe
from appliance.deploy.process import descendants, identify, is_running
from appliance.deploy.reconcile import Readiness
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from tests.deploy.applying import Heard, apply, ask, wanted
from tests.deploy.killing import check_declared, processes_of
from tests.deploy.test_live import asking
from tests.e2e.conftest import free_port
from tests.server.harness import says, wait_until

REPLIES = [says("greet", "hello world")]
SCRIPT = Script(replies=REPLIES)


@dataclasses.dataclass
class AtPhase(Heard):
    """Does something when a phase begins for the first time."""

    moment: str = ""
    act: Callable[[], None] = lambda: None

    def phase(self, name: str) -> None:
        if name == self.moment and name not in self.phases:
            super().phase(name)
            self.act()
        super().phase(name)


def interrupt() -> None:
    raise KeyboardInterrupt


Broken = tuple[DesiredState, Heard, float]  # what is applied, what happens meanwhile, how long it may take


def port_is_taken(state: DeploymentState, folder: Path, taken: int) -> Broken:
    return wanted(folder, SCRIPT, port=taken, max_num_seqs=4), Heard(), 60.0


def weights_cannot_be_read(state: DeploymentState, folder: Path, taken: int) -> Broken:
    what = wanted(folder, SCRIPT, max_num_seqs=4)
    (folder / "script.json").write_text("not a script")
    return what, Heard(), 60.0


def tokenizer_is_gone(state: DeploymentState, folder: Path, taken: int) -> Broken:
    what = wanted(folder, SCRIPT, max_num_seqs=4)
    (folder / "tokenizer.json").unlink()
    return what, Heard(), 60.0


def template_is_broken(state: DeploymentState, folder: Path, taken: int) -> Broken:
    return wanted(folder, SCRIPT, max_num_seqs=4, chat_template="{{ broken"), Heard(), 60.0


def engine_dies_while_loading(state: DeploymentState, folder: Path, taken: int) -> Broken:
    def kill() -> None:
        current = state.current()
        assert current is not None
        [new] = current.leftover
        wait_until(lambda: bool(descendants(new)), "no engine")
        for engine in descendants(new):
            os.kill(engine.pid, signal.SIGKILL)

    what = wanted(folder, Script(replies=REPLIES, load_seconds=30.0), max_num_seqs=4)
    return what, AtPhase(moment="connect", act=kill), 60.0


def it_takes_too_long(state: DeploymentState, folder: Path, taken: int) -> Broken:
    return wanted(folder, Script(replies=REPLIES, load_seconds=30.0), max_num_seqs=4), Heard(), 1.0


WAYS: dict[str, Callable[[DeploymentState, Path, int], Broken]] = {
    "cannot listen on 127.0.0.1": port_is_taken,
    "JSON is malformed": weights_cannot_be_read,
    "tokenizer": tokenizer_is_gone,
    "the chat template is broken": template_is_broken,
    "the engine process was ended by SIGKILL": engine_dies_while_loading,
    "the server was not ready after 1 s": it_takes_too_long,
}


def test_a_broken_generation_leaves_the_old_one(
    state: DeploymentState, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of being broken, one after the other, under one server that is asked throughout."""
    first = apply(state, wanted(tmp_path / "a", SCRIPT))
    with asking(first.current.url) as caller, socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        for number, (reason, way) in enumerate(WAYS.items(), 2):
            what, heard, timeout_s = way(state, tmp_path / f"{number}", port)
            with pytest.raises(ApplyError, match=reason) as failure:
                apply(state, what, heard, timeout_s=timeout_s)
            assert failure.value.exit_code == ExitCode.APPLY_FAILED
            assert "generation 1 has served throughout" in str(failure.value)
            assert state.current() == first.current
            result = state.generation(number).result()
            assert result is not None
            assert (result.outcome, reason in result.reason) == ("failed", True)
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    family = {first.current.process.pid, *(each.pid for each in descendants(first.current.process))}
    wait_until(lambda: processes_of(state) == family, "a broken server is left")
    monkeypatch.setenv("APPLIANCE_STATE", str(state.folder.parent))
    assert history.run(state.name) == 0
    told = capsys.readouterr().out
    assert all(reason in told for reason in WAYS)


@pytest.mark.parametrize("how", ["beside", "in place"])
def test_ctrl_c_leaves_the_old_generation(state: DeploymentState, tmp_path: Path, how: str) -> None:
    first, what = wanted(tmp_path / "a", SCRIPT), wanted(tmp_path / "a", SCRIPT, max_num_seqs=4)
    before = apply(state, first).current
    with pytest.raises(KeyboardInterrupt):
        apply(state, what, AtPhase(moment="connect", act=interrupt), has_room=how == "beside")
    current = state.current()
    assert current is not None
    assert (current.generation, current.process == before.process) == (1, how == "beside")
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.reason) == ("failed", "interrupted (KeyboardInterrupt)")
    check_declared(state, first)


class FullDisk:
    """The nth write from now on fails."""

    def __init__(self) -> None:
        self.left = 0
        self._write = state_module.write_atomically

    def write(self, path: Path, data: bytes) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    disk = FullDisk()
    monkeypatch.setattr("appliance.deploy.state.write_atomically", disk.write)
    monkeypatch.setattr("appliance.deploy.control.write_atomically", disk.write)
    yield disk
    disk.left = 0


@pytest.mark.parametrize(
    ("how", "writes"), [("reload", (1, 4, 5, 6, 7, 8)), ("beside", (6, 7, 9)), ("in place", (6, 8, 9))]
)
def test_a_disk_that_fills_up(
    state: DeploymentState, tmp_path: Path, disk: FullDisk, how: str, writes: tuple[int, ...]
) -> None:
    """At every write of an apply: the old generation serves, or the new one; the next apply ends as declared."""
    change = {"served_names": ["scripted", "live"]} if how == "reload" else {"max_num_seqs": 4}
    port = free_port()
    specs = [wanted(tmp_path / "a", SCRIPT, port=port, **each) for each in ({}, change)]
    now = specs[0]
    apply(state, now)
    for nth in writes:
        wanted_now = specs[1] if now is specs[0] else specs[0]
        disk.left = nth
        heard = Heard()
        with suppress(ApplyError):
            apply(state, wanted_now, heard, has_room=how == "beside")
            assert disk.left > 0 or "No space left on device" in heard.warnings[0], nth
            now = wanted_now
        disk.left = 0
        current = state.current()
        assert current is not None
        assert ask(current.url) == "hello world"
        apply(state, now, has_room=how == "beside")
        check_declared(state, now)


def test_down_ends_what_a_killed_apply_left(
    state: DeploymentState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(state.folder.parent))
    old = apply(state, wanted(tmp_path / "a", SCRIPT)).current
    os.kill(old.process.pid, signal.SIGKILL)
    with subprocess.Popen(["sleep", "600"]) as orphan:
        left = identify(orphan.pid)
        assert left is not None
        state.write_current(msgspec.structs.replace(old, leftover=(left,)))
        wait_until(lambda: not is_running(old.process), "the server lives")
        assert down.run(state.name) == 0
        assert not is_running(left)
    assert observe(state).readiness is Readiness.ABSENT


def test_a_lock_that_cannot_be_opened_is_told(state: DeploymentState) -> None:
    state.lock_path.mkdir()
    told = f"the state in {state.lock_path} cannot be written: Is a directory"
    with pytest.raises(ApplyError, match=told) as failure, changing(state.lock_path, "apply", 0.0):
        pytest.fail("a folder was locked")
    assert "with APPLIANCE_STATE" in str(failure.value.hint)
