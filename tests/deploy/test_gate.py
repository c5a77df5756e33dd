"""A new generation that misses the spec's targets does not take over; the one before serves throughout."""

import dataclasses
from pathlib import Path

import httpx
import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.observe import observe
from appliance.deploy.process import is_running
from appliance.deploy.reconcile import Readiness
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from appliance.plan.serving_types import GatePlan
from appliance.service.slo_gate import Latencies
from tests.deploy.applying import Heard, apply, wanted
from tests.deploy.test_live import asking
from tests.server.harness import says

REPLIES = [says("greet", "hello world")]
QUICK, SLOW = Script(replies=REPLIES), Script(replies=REPLIES, step_seconds=0.7)
GATE = GatePlan(num_prompts=2, max_concurrency=2, input_len=16, output_len=2)
TARGETS = {"ttft_p95": 20.0, "itl_p95": 0.5}


@pytest.mark.parametrize(("how", "api_servers"), [("beside", 1), ("in place", 1), ("beside", 2), ("in place", 2)])
def test_one_that_is_too_slow_is_refused(state: DeploymentState, tmp_path: Path, how: str, api_servers: int) -> None:
    first = apply(state, wanted(tmp_path / "a", QUICK, gate=GATE, slo=TARGETS, api_servers=api_servers))
    slow = wanted(tmp_path / "b", SLOW, gate=GATE, slo=TARGETS, max_num_seqs=4, api_servers=api_servers)
    heard = Heard()
    with (
        asking(first.current.url) as caller,
        pytest.raises(ApplyError, match=r"itl_p95 is [67]\d\d.*, the target is 500\.0 ms"),
    ):
        apply(state, slow, heard, has_room=how == "beside")
    assert caller.errors == []
    assert set(caller.answers) == {"hello world"}
    assert "gate" in heard.phases
    seen = observe(state)
    assert seen.current is not None
    assert (seen.readiness, seen.current.generation) == (Readiness.READY, 1)
    assert (seen.current.process == first.current.process) == (how == "beside")
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.how) == ("failed", how)
    assert "the gate of slo was not passed" in result.reason


def test_one_that_keeps_them_takes_over(state: DeploymentState, tmp_path: Path) -> None:
    first = apply(state, wanted(tmp_path / "a", SLOW, gate=GATE, slo=TARGETS))  # there is nothing to return to
    second = apply(state, wanted(tmp_path / "b", QUICK, gate=GATE, slo=TARGETS, max_num_seqs=4))
    assert second.how == "beside"
    assert not is_running(first.current.process)
    metrics = httpx.get(f"{second.current.url}/metrics").text
    assert "# TYPE appliance_requests_finished_total counter" in metrics
    finished = [line for line in metrics.splitlines() if line.startswith("appliance_requests_finished_total")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in finished) == 0  # the requests of the gate are not counted


def test_an_engine_that_dies_in_the_gate_is_refused(state: DeploymentState, tmp_path: Path) -> None:
    apply(state, wanted(tmp_path / "a", QUICK))
    dies = wanted(tmp_path / "b", Script(crash_at_step=3), gate=GATE, slo=TARGETS, max_num_seqs=4)
    with pytest.raises(ApplyError, match="the gate of slo was not passed"):
        apply(state, dies)
    assert observe(state).readiness is Readiness.READY


def test_a_rollback_has_no_gate(state: DeploymentState, tmp_path: Path) -> None:
    slow = wanted(tmp_path / "a", SLOW, gate=GATE, slo=TARGETS)
    apply(state, slow)
    apply(state, wanted(tmp_path / "b", QUICK, gate=GATE, slo=TARGETS, max_num_seqs=4))
    assert apply(state, dataclasses.replace(slow, rollback_of=1)).how == "beside"


def test_percentiles_are_judged() -> None:
    found = Latencies()
    for first in (0.1, 0.1, 0.9):
        found.add(0.0, [first, first + 0.01, first + 0.02], 3)
    assert found.missed({"ttft_p50": 0.2, "itl_p99": 0.011, "tpot_p50": 0.011, "e2el_p99": 2.0}) == []
    assert found.missed({"ttft_p99": 0.2}) == ["ttft_p99 is 884.0 ms, the target is 200.0 ms"]
    assert Latencies().missed({"itl_p95": 0.1}) == []
