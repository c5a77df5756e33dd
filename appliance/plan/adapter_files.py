"""The plan of an adapter from its files, for the planner and for servers that load one."""

from appliance.checkpoint.adapter import AdapterFacts
from appliance.plan.types import AdapterPlan


def adapter_plan(name: str, facts: AdapterFacts) -> AdapterPlan:
    """Returns the plan of an adapter of which nothing else is said."""
    return AdapterPlan(
        name=name, path=facts.root, sha256=facts.sha256, rank=facts.max_rank, num_modules=len(facts.modules)
    )
