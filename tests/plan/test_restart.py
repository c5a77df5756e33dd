"""What becomes of an engine that dies or hangs, where it has a process of its own and where not."""

from appliance.plan.restart import BREAKPOINT_S

from .machines import MODEL, load, plan

INSIDE = MODEL + "endpoints: {http: {disable_frontend_multiprocessing: true}}\n"


def test_an_engine_with_a_process_is_started_again() -> None:
    found = plan(load())
    assert not found.serving.has_engine_inside
    assert (found.restart.policy, found.restart.heartbeat_timeout_s) == ("on-failure", 60.0)


def test_an_engine_in_the_servers_process_is_not_and_may_be_held_by_a_breakpoint() -> None:
    found = plan(load(INSIDE))
    assert found.serving.has_engine_inside
    assert (found.restart.policy, found.restart.heartbeat_timeout_s) == ("never", BREAKPOINT_S)
    told = {each.path: each.reason for each in found.decisions if each.path.startswith("restart.")}
    assert "disable_frontend_multiprocessing" in told["restart.policy"]
    assert "breakpoint" in told["restart.heartbeat_timeout_s"]


def test_what_the_spec_says_of_hangs_and_restarts_is_kept() -> None:
    found = plan(load(INSIDE + "restart: {policy: never, heartbeat_timeout: 5s}\n"))
    assert (found.restart.policy, found.restart.heartbeat_timeout_s) == ("never", 5.0)
