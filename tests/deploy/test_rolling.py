"""Replicas take another plan one after the other: nobody is refused, and one that fails leaves all as they were."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.difference import difference
from appliance.deploy.execute import ApplyResult, DesiredState
from appliance.deploy.observe import observe
from appliance.deploy.process import ProcessId, descendants
from appliance.deploy.reconcile import PlanChange, Readiness
from appliance.deploy.rolling import can_roll
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from tests.deploy.applying import Heard, apply, wanted
from tests.deploy.test_gate import GATE, QUICK, SLOW, TARGETS
from tests.deploy.test_live import asking
from tests.engine.plans import scripted_plan
from tests.server.harness import wait_until

TWO: dict[str, Any] = {"replicas": 2, "data": 2, "max_restarts": 3, "backoff_s": 0.1}


def two(folder: Path, script: Script = QUICK, **changes: object) -> DesiredState:
    return wanted(folder / "a", script, **(TWO | changes))


def replicas(url: str) -> list[str]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/readyz").json()["replicas"]
    return [each["state"] for each in found]


class Fewest(threading.Thread):
    """Looks again and again how many replicas serve."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._is_over = url, threading.Event()
        self.seen: set[int] = set()
        self.start()

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            self.seen.add(replicas(self._url).count("ready"))

    def end(self) -> set[int]:
        self._is_over.set()
        self.join()
        return self.seen


def engines(result: ApplyResult) -> set[ProcessId]:
    found = descendants(result.current.process)
    return {each for each in found if b"appliance.engine" in Path(f"/proc/{each.pid}/cmdline").read_bytes()}


def test_a_change_of_engines_rolls_and_nobody_is_refused(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, two(tmp_path))
    before, url = engines(first), first.current.url
    other = two(tmp_path, max_num_seqs=4)
    told = difference(state, observe(state), other.plan, {})
    assert (told.how, told.unavailable_s) == ("rolling", 0.0)
    fewest, heard = Fewest(url), Heard()
    with asking(url) as caller:
        second = apply(state, other, heard)
    assert fewest.end() == {1, 2}
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    assert (second.how, second.current.process, second.current.url) == ("rolling", first.current.process, url)
    assert "replace engines" in heard.phases
    assert len(engines(second)) == 2
    assert engines(second).isdisjoint(before)
    assert apply(state, other).how == "kept"


@pytest.mark.parametrize(
    ("script", "changes", "why"),
    [
        (QUICK, {"kernel_set": "none"}, "engine 0 did not start"),
        (SLOW, {"max_num_seqs": 4}, "the gate of slo was not passed"),
    ],
    ids=["cannot start", "too slow"],
)
def test_where_one_fails_all_are_as_before(
    state: DeploymentState, tmp_path: Path, script: Script, changes: dict[str, object], why: str
) -> None:
    first = apply(state, two(tmp_path, gate=GATE, slo=TARGETS, max_restarts=0))
    with asking(first.current.url) as caller, pytest.raises(ApplyError, match=why):
        apply(state, two(tmp_path, script, gate=GATE, slo=TARGETS, max_restarts=0, **changes))
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})
    seen = observe(state)
    assert seen.current is not None
    assert (seen.readiness, seen.current.generation, seen.current.process) == (
        Readiness.READY,
        1,
        first.current.process,
    )
    assert replicas(first.current.url) == ["ready", "ready"]
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.how) == ("failed", "rolling")


def test_one_that_is_away_is_replaced_first(state: DeploymentState, tmp_path: Path) -> None:
    """A replica that was given up comes back with the new plan, and the other one serves until then."""
    first = apply(state, two(tmp_path))
    victim = min(engines(first), key=lambda each: each.pid)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: "failed" in replicas(first.current.url), "one is given up")
    fewest = Fewest(first.current.url)
    assert apply(state, two(tmp_path, max_num_seqs=4)).how == "rolling"
    assert min(fewest.end()) == 1
    assert replicas(first.current.url) == ["ready", "ready"]


def test_live_changes_reach_all_and_those_that_come_back(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, two(tmp_path, restart="on-failure"))
    url = first.current.url
    assert (
        apply(state, two(tmp_path, restart="on-failure", served_names=["scripted", "other"], max_waiting=50)).how
        == "reload"
    )
    kept = engines(first)
    os.kill(min(kept, key=lambda each: each.pid).pid, signal.SIGKILL)
    wait_until(lambda: len(engines(first) - kept) == 1, "another engine starts")
    wait_until(lambda: replicas(url) == ["ready", "ready"], "it is ready")
    with asking(url) as caller:
        assert (
            apply(state, two(tmp_path, restart="on-failure", served_names=["scripted", "other"], max_waiting=40)).how
            == "reload"
        )
    assert (caller.errors, set(caller.answers)) == ([], {"hello world"})


def test_what_can_be_rolled(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, **{**TWO, "max_restarts": 0})

    def rolls(*paths: str) -> bool:
        return can_roll(plan, [PlanChange(path, 1, 2) for path in paths])

    assert rolls("scheduler.max_num_seqs", "serving.limits.max_n", "cache.num_blocks")
    for path in ("model.path", "parallel.replicas", "parallel.data", "adapters.served", "serving.listen.port"):
        assert not rolls("scheduler.max_num_seqs", path), path
    assert not can_roll(scripted_plan(tmp_path), [PlanChange("scheduler.max_num_seqs", 1, 2)])
