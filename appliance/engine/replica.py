"""What differs between engines that run one plan."""

import msgspec

from appliance.engine.core.requests import sibling_seed
from appliance.plan.types import EnginePlan


def as_replica(plan: EnginePlan, number: int) -> EnginePlan:
    """Returns the plan as the replica of this number runs it.

    Only the seed differs, from which requests without a seed of their own get one: two replicas with one seed would
    answer a prompt that each gets once with the same draws. Replica 0 draws as an engine alone does.
    """
    seed = sibling_seed(plan.model.seed, number)
    return msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, seed=seed))
