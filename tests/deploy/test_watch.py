"""`apply --watch`: debouncing with a clock of the test, and edits that real servers of the scripted engine see."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.base.errors import SpecError
from appliance.cli import apply as apply_verb
from appliance.cli import down, watch
from appliance.cli.arguments.lifecycle import ApplyArguments
from appliance.cli.verb import UsageError
from appliance.deploy.state import DeploymentState
from appliance.deploy.watch import POLL_S, REST_S, Watch
from appliance.spec import load_spec
from appliance.spec.compose import reachable_files
from tests.deploy.applying import ask, wanted

SPEC = """\
api_version: appliance/v1
kind: Deployment
name: scripted
model: {source: ./none}
"""


class EndedError(Exception):
    """The test has seen enough."""


class Script:
    """A clock that moves when the watch sleeps, and an edit for some of the sleeps."""

    def __init__(self, edits: dict[int, Callable[[], Any]], ends_at: int, end: BaseException) -> None:
        self.now = 0.0
        self._sleeps = 0
        self._edits, self._ends_at, self._end = edits, ends_at, end

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._sleeps += 1
        if self._sleeps in self._edits:
            self._edits[self._sleeps]()
        if self._sleeps == self._ends_at:
            raise self._end


def writer(file: Path, text: str) -> Callable[[], None]:
    """Replaces the file, as editors do; its times differ whatever the clock of the file system."""

    def write() -> None:
        beside = file.with_suffix(".new")
        beside.write_text(text)
        os.utime(beside, ns=(0, len(text) + hash(text) % 10**9))
        beside.replace(file)

    return write


def acts(tmp_path: Path, edits: dict[int, Callable[[], Any]], ends_at: int = 20) -> list[float]:
    file = tmp_path / "a.yaml"
    script = Script(edits, ends_at, EndedError())
    watching = Watch(lambda: reachable_files(file), script.clock, script.sleep)
    seen: list[float] = []
    with pytest.raises(EndedError):
        watching.run(lambda: seen.append(script.now))
    return seen


def test_several_writes_in_a_row_are_one_change(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a")
    seen = acts(tmp_path, {2: writer(file, "name: ab"), 3: writer(file, "name: abc"), 4: writer(file, "name: abcd")})
    assert seen == [pytest.approx(4 * POLL_S + REST_S)]


def test_included_files_are_watched_once_they_are_named(tmp_path: Path) -> None:
    file, base = tmp_path / "a.yaml", tmp_path / "base.yaml"
    file.write_text("name: a")
    edits = {
        1: writer(base, "name: b"),
        5: writer(file, "include: [base.yaml]"),
        10: writer(base, "name: base"),
        15: base.unlink,
    }
    assert len(acts(tmp_path, edits)) == 3


def test_nothing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a")
    assert acts(tmp_path, {}) == []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeploymentState]:
    """Specs that are read as they are, and planned for the scripted engine."""

    def prepare(spec: str, overrides: object, progress: object) -> Any:
        loaded = load_spec(spec, environ={})
        names = loaded.spec.model.served_names
        plan = wanted(tmp_path / "plan", served_names=["scripted", *names]).plan
        return SimpleNamespace(loaded=loaded, plan=plan)

    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(apply_verb, "prepare", prepare)
    state = DeploymentState(tmp_path / "state", "scripted")
    yield state
    if state.current() is not None:
        down.run("scripted")


def test_edits_reach_the_server_and_wrong_ones_do_not(
    server: DeploymentState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(SPEC)
    script = Script(
        {
            2: writer(file, SPEC + "cache: {block_size: 24}\n"),
            8: writer(file, SPEC.replace("none", "none, served_names: [new]")),
        },
        ends_at=14,
        end=KeyboardInterrupt(),
    )
    watching = Watch(lambda: reachable_files(file), script.clock, script.sleep)
    assert watch.run(ApplyArguments(spec=str(file)), watching) == 0
    told = capsys.readouterr().err
    assert f"{file}:5:21: error: cache.block_size cannot be 24" in told
    assert "what ran goes on" in told
    current = server.current()
    assert current is not None
    assert (current.generation, current.home_generation) == (2, 1)  # the same process, changed as it ran
    assert ask(current.url) == "hello world"


def test_a_wrong_spec_is_not_watched(server: DeploymentState, tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(SPEC + "cache: {block_size: 24}\n")
    with pytest.raises(SpecError):
        watch.run(ApplyArguments(spec=str(file)))
    assert server.current() is None


def test_watching_is_not_for_the_foreground() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        watch.run(ApplyArguments(spec="x.yaml", foreground=True))
