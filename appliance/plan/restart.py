"""Pass `serving`, the end of an engine: whether it has a process of its own, and what happens when it dies or hangs."""

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.serving_types import RestartPlan
from appliance.spec.rank_counts import replicas_here

RULE = "plan/one-process"
FIELD = "endpoints.http.disable_frontend_multiprocessing"
BREAKPOINT_S = 86400.0  # someone may stand at a breakpoint for as long


def plan_engine_inside(inputs: PlanInputs, ledger: Ledger) -> bool:
    """Returns whether the engine is a thread of the server's process. Refuses what needs several processes, and rules
    of restarts, which would need another one."""
    http, restart = inputs.spec.endpoints.http, inputs.spec.restart
    if not http.disable_frontend_multiprocessing:
        return False
    if http.api_server_count > 1:
        message = f"{http.api_server_count} API processes cannot be one process with the engine"
        ledger.refuse("endpoints.http.api_server_count", RULE, message, allowed="1", hint=f"or remove {FIELD}")
    if replicas_here(inputs.spec.parallelism) > 1:
        message = f"{replicas_here(inputs.spec.parallelism)} replicas cannot be one process with the server"
        ledger.refuse("parallelism.data", RULE, message, allowed="1", hint=f"or remove {FIELD}")
    for name in ("policy", "max_restarts", "window", "backoff"):
        if ledger.loaded.is_set(f"restart.{name}") and (name != "policy" or restart.policy != "never"):
            message = "an engine in the server's process ends with it, and is not started again by it"
            hint = f"remove it, or {FIELD}; what starts the server starts both again"
            ledger.refuse(f"restart.{name}", RULE, message, hint=hint)
    return True


def plan_restart(inputs: PlanInputs, ledger: Ledger) -> RestartPlan:
    """An engine in the server's process is never started again, and held for hung only if the spec says after what."""
    spec = inputs.spec.restart
    policy, heartbeat_s = spec.policy, spec.heartbeat_timeout
    if inputs.spec.endpoints.http.disable_frontend_multiprocessing:
        reason = f"{FIELD}: it ends with the server's process"
        policy = ledger.decide("restart.policy", "never", "spec", reason)
        if not ledger.loaded.is_set("restart.heartbeat_timeout"):
            reason = f"{FIELD}: a breakpoint holds the engine, and only a process of its own can be killed"
            heartbeat_s = ledger.decide("restart.heartbeat_timeout_s", BREAKPOINT_S, "spec", reason)
    return RestartPlan(
        policy=policy,
        max_restarts=spec.max_restarts,
        window_s=spec.window,
        backoff_s=spec.backoff,
        heartbeat_timeout_s=heartbeat_s,
    )
