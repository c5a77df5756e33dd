"""The restart rule, with time as an argument."""

import pytest

from appliance.plan.serving_types import RestartPlan
from appliance.service.engine_process import describe_exit
from appliance.service.restart import RestartRule


def rule(policy: str = "on-failure", **changes: float) -> RestartRule:
    settings = {"max_restarts": 3, "window_s": 100.0, "backoff_s": 1.0, "heartbeat_timeout_s": 5.0, **changes}
    return RestartRule(RestartPlan(policy=policy, **settings))  # type: ignore[arg-type] # test values


def test_waits_double_until_it_is_given_up() -> None:
    restarts = rule()
    assert [restarts.after_failure(now) for now in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 4.0, None]
    assert "4 times within 100 s" in restarts.why_given_up()


def test_old_failures_are_forgotten() -> None:
    restarts = rule(max_restarts=1)
    assert [restarts.after_failure(now) for now in (0.0, 200.0, 400.0)] == [1.0, 1.0, 1.0]


def test_never() -> None:
    restarts = rule("never")
    assert restarts.after_failure(0.0) is None
    assert "never" in restarts.why_given_up()


def test_waits_are_bounded() -> None:
    restarts = rule(max_restarts=50)
    assert [restarts.after_failure(0.0) for _ in range(30)][-1] == RestartRule.MAX_BACKOFF_S


@pytest.mark.parametrize(("code", "said"), [(1, "exit code 1"), (-9, "SIGKILL"), (-63, "signal")])
def test_exits_are_described(code: int, said: str) -> None:
    assert said in describe_exit(code)
