"""The fields of a spec that say where experts are, and when they move."""

from typing import Any

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger

_PATH = "parallelism."


def expert_fields(inputs: PlanInputs, ledger: Ledger) -> dict[str, Any]:
    """Returns what the plan says of them. Those of the balancer count only with it."""
    spec = inputs.spec.parallelism
    strategy = spec.expert_placement_strategy
    found: dict[str, Any] = {
        "expert_placement_strategy": ledger.take(
            "parallel.expert_placement_strategy", f"{_PATH}expert_placement_strategy", strategy
        )
    }
    wanted = {
        "eplb_window_size": spec.eplb_window_size,
        "eplb_step_interval": spec.eplb_step_interval,
        "eplb_log_balancedness": spec.eplb_log_balancedness,
    }
    if not spec.enable_eplb:
        for name, value in wanted.items():
            if ledger.source_of(_PATH + name) != "default":
                reason = f"{_PATH}{name} changes nothing: parallelism.enable_eplb is false"
                ledger.decide(f"parallel.{name}", value, "computed", reason)
        return found
    wanted |= {"enable_eplb": True, "num_redundant_experts": spec.num_redundant_experts}
    return found | {name: ledger.take(f"parallel.{name}", _PATH + name, value) for name, value in wanted.items()}
