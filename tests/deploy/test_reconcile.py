"""The reconciler is pure: observation and plan in, actions with causes out."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from appliance.deploy.adapters import adapter_drift
from appliance.deploy.process import ProcessId
from appliance.deploy.reconcile import Observation, Readiness, Verb, changes, reconcile
from appliance.deploy.state import CurrentState
from appliance.engine.adapter_messages import AdapterReport
from appliance.plan.hashes import with_hashes
from appliance.plan.types import AdapterPlan, AdaptersPlan, EnginePlan
from tests.engine.plans import scripted_plan

CURRENT = CurrentState(
    name="scripted",
    generation=1,
    process=ProcessId(1, 1, "boot"),
    started_at=0.0,
    url="http://127.0.0.1:1",
    served_name="scripted",
    needs_key=False,
    engine_sha256="",
    serving_sha256="",
    spec_file="",
    appliance_version="0",
)


@pytest.fixture
def plan(tmp_path: Path) -> EnginePlan:
    return with_hashes(scripted_plan(tmp_path))


def seen(readiness: Readiness, plan: EnginePlan | None) -> Observation:
    return Observation(readiness=readiness, reason="because", current=CURRENT, plan=plan)


def verbs(seen: Observation, wanted: EnginePlan) -> list[Verb]:
    return [action.verb for action in reconcile(seen, wanted)]


def changed(plan: EnginePlan, section: str, **values: object) -> EnginePlan:
    """`section`: its path, "serving.limits"."""
    first, _, below = section.partition(".")
    part = getattr(plan, first)
    if below:
        part = msgspec.structs.replace(part, **{below: msgspec.structs.replace(getattr(part, below), **values)})
    else:
        part = msgspec.structs.replace(part, **values)
    return with_hashes(msgspec.structs.replace(plan, **{first: part}))


def test_what_is_absent_or_dead_is_started(plan: EnginePlan) -> None:
    assert verbs(Observation(readiness=Readiness.ABSENT), plan) == [Verb.START]
    assert verbs(seen(Readiness.DEAD, plan), plan) == [Verb.START]
    assert reconcile(seen(Readiness.DEAD, plan), plan)[0].cause == "because"


def test_the_same_plan_is_kept_or_waited_for(plan: EnginePlan) -> None:
    assert verbs(seen(Readiness.READY, plan), plan) == [Verb.KEEP]
    assert verbs(seen(Readiness.NOT_READY, plan), plan) == [Verb.WAIT]


def test_what_has_failed_is_started_anew(plan: EnginePlan) -> None:
    actions = reconcile(seen(Readiness.FAILED, plan), plan)
    assert [(action.verb, action.cause) for action in actions] == [(Verb.STOP, "because"), (Verb.START, "because")]


def test_a_changed_plan_replaces_and_names_the_change(plan: EnginePlan) -> None:
    wanted = changed(plan, "scheduler", max_num_seqs=4)
    [action] = reconcile(seen(Readiness.READY, plan), wanted)
    assert (action.verb, action.apply) == (Verb.SWAP, "restart")
    assert action.cause == "changed scheduler.max_num_seqs: 8 -> 4"
    assert [(change.path, change.old, change.new) for change in action.changes] == [("scheduler.max_num_seqs", 8, 4)]


def test_a_live_change_is_a_reload(plan: EnginePlan) -> None:
    wanted = changed(changed(plan, "serving.limits", max_n=3), "model", served_names=("other",))
    [action] = reconcile(seen(Readiness.READY, plan), wanted)
    assert (action.verb, action.apply) == (Verb.RELOAD, "live")


def adapted(plan: EnginePlan, **digests: str) -> EnginePlan:
    served = tuple(
        AdapterPlan(name=name, path=f"/{name}", sha256=digest, rank=4, num_modules=1)
        for name, digest in digests.items()
    )
    adapters = AdaptersPlan(max_loras=2, max_rank=4, dtype="f32", num_modules=1, max_cpu_loras=3, served=served)
    return with_hashes(msgspec.structs.replace(plan, adapters=adapters))


def test_another_set_of_adapters_is_a_reload_that_names_each_by_its_digest(plan: EnginePlan) -> None:
    old, new = adapted(plan, sql="a1", chat="b1"), adapted(plan, chat="b2", code="c1")
    [action] = reconcile(seen(Readiness.READY, old), new)
    assert (action.verb, action.apply) == (Verb.RELOAD, "adapters")
    assert {(change.path, change.old, change.new) for change in action.changes} == {
        ("adapters.served.sql", "a1", None),
        ("adapters.served.chat.sha256", "b1", "b2"),
        ("adapters.served.code", None, "c1"),
    }
    assert verbs(seen(Readiness.READY, plan), new) == [Verb.SWAP], "places for adapters are made at the start"


def test_what_requests_have_loaded_is_taken_back(plan: EnginePlan) -> None:
    planned, served = adapted(plan, sql="a1"), adapted(plan, sql="a1", code="c1").adapters
    assert served is not None
    reports = tuple(
        AdapterReport(adapter=each, num_modules=1, effective_modules=1, is_verified=True) for each in served.served
    )
    found = Observation(readiness=Readiness.READY, current=CURRENT, plan=planned, adapters=reports)
    [action] = reconcile(found, planned)
    assert (action.verb, action.cause) == (Verb.RELOAD, 'changed adapters.served.code: "c1" -> null')
    assert list(adapter_drift(planned, reports)) == [("code", "not served", "sha256:c1")]
    assert verbs(dataclasses.replace(found, adapters=reports[:1]), planned) == [Verb.KEEP]


def test_the_costliest_change_decides(plan: EnginePlan) -> None:
    wanted = changed(changed(plan, "serving.limits", max_n=3), "serving.listen", port=9)
    [action] = reconcile(seen(Readiness.READY, plan), wanted)
    assert (action.verb, action.apply) == (Verb.SWAP, "drain")


def test_a_change_of_what_serves_nobody_yet_needs_no_care(plan: EnginePlan) -> None:
    assert verbs(seen(Readiness.NOT_READY, plan), changed(plan, "serving.limits", max_n=3)) == [Verb.STOP, Verb.START]


def test_many_changes_are_counted(plan: EnginePlan) -> None:
    wanted = changed(changed(plan, "scheduler", max_num_seqs=4, policy="priority"), "cache", num_blocks=9, block_size=8)
    assert reconcile(seen(Readiness.READY, plan), wanted)[0].cause.endswith("(and 1 more)")


def test_what_a_server_does_not_read_changes_nothing(plan: EnginePlan) -> None:
    wanted = with_hashes(msgspec.structs.replace(plan, bench={"scenarios": []}, spec_sha256="other"))
    assert wanted.serving_sha256 != plan.serving_sha256
    assert verbs(seen(Readiness.READY, plan), wanted) == [Verb.KEEP]


def test_an_unreadable_plan_is_replaced(plan: EnginePlan) -> None:
    assert verbs(seen(Readiness.READY, None), plan) == [Verb.STOP, Verb.START]


def test_hashes_of_keys_are_not_shown(plan: EnginePlan) -> None:
    wanted = changed(plan, "serving.auth", key_hashes={"team": "sha256:secret"})
    [change] = changes(plan, wanted)
    assert "secret" not in str(change)
    assert change.path == "serving.auth.key_hashes.team"
