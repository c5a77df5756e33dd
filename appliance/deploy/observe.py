"""What runs now."""

import msgspec

from appliance.deploy.adapters import served_now
from appliance.deploy.probe import ask_ready
from appliance.deploy.process import is_running
from appliance.deploy.reconcile import Observation, Readiness
from appliance.deploy.state import CurrentState, DeploymentState
from appliance.plan.types import EnginePlan


def observe(state: DeploymentState) -> Observation:
    """Reads the record, looks at the process, and asks the server."""
    current = state.current()
    if current is None:
        return Observation(readiness=Readiness.ABSENT)
    plan = _plan_of(state, current)
    if not is_running(current.process):
        reason = f"its server (pid {current.process.pid}) has ended"
        return Observation(readiness=Readiness.DEAD, reason=reason, current=current, plan=plan)
    answer = ask_ready(current.url)
    not_ready = Readiness.FAILED if answer.is_failed else Readiness.NOT_READY
    readiness = Readiness.READY if answer.is_ready else not_ready
    return Observation(
        readiness=readiness,
        reason=answer.reason,
        current=current,
        plan=plan,
        adapters=served_now(state.generation(current.home_generation).folder),
        is_unsure=bool(current.pending),
    )


def _plan_of(state: DeploymentState, current: CurrentState) -> EnginePlan | None:
    try:
        return state.generation(current.generation).plan()
    except (OSError, msgspec.DecodeError):
        return None
