"""What differs between engines that run one plan."""

import msgspec

from appliance.engine.core.requests import sibling_seed
from appliance.plan.types import EnginePlan, KernelPlan


def as_replica(plan: EnginePlan, number: int) -> EnginePlan:
    """Returns the plan as the replica of this number runs it.

    The seed differs, from which requests without a seed of their own get one: two replicas with one seed would answer a
    prompt that each gets once with the same draws. Replica 0 draws as an engine alone does. Where ranks are bound to
    CPUs, each replica has those of its own ranks.
    """
    seed = sibling_seed(plan.model.seed, number)
    model = msgspec.structs.replace(plan.model, seed=seed)
    return msgspec.structs.replace(plan, model=model, kernels=_bound(plan, number - plan.parallel.first_replica))


def _bound(plan: EnginePlan, place: int) -> KernelPlan:
    num_ranks = plan.parallel.tensor * plan.parallel.pipeline
    own = slice(place * num_ranks, (place + 1) * num_ranks)
    return msgspec.structs.replace(plan.kernels, cpus=plan.kernels.cpus[own], nodes=plan.kernels.nodes[own])
