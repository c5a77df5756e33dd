"""Where the ranks of a plan find one another: in memory, in a file, at an address, or on a Ray cluster."""

import importlib

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.handles import RankStartError
from appliance.engine.ranks.meeting import AtAddress, InFile, InMemory, LinkedMeeting, Meeting, links_ranks
from appliance.engine.ranks.proof import ranks_token
from appliance.engine.ranks.share import Share
from appliance.kernels.lockstep import Lockstep
from appliance.plan.types import EnginePlan


def gathered(plan: EnginePlan, config: SchedulerConfig, lockstep: Lockstep | None = None) -> tuple[Meeting, Share]:
    """Returns where the ranks of a plan find one another, and the leader's share. lockstep: the replicas with which
    they have the experts among them. Raises RankStartError if the system refuses memory, and ApplianceError if ranks of
    several machines have no token or no address."""
    if plan.parallel.nnodes > 1:
        address = _of_several_machines(plan)
        return address, Share.linked(plan, 0, address.rendezvous)
    try:
        return _met_here(plan, config, lockstep)
    except OSError as error:
        message = f"the memory that ranks share cannot be had: {error.strerror}"
        hint = "raise the limits of file sizes (ulimit -f) and of address space (ulimit -v)"
        raise RankStartError(message, hint=hint) from error


def _met_here(plan: EnginePlan, config: SchedulerConfig, lockstep: Lockstep | None) -> tuple[Meeting, Share]:
    if links_ranks(plan):
        file = InFile()
        return file, Share.linked(plan, 0, file.rendezvous)
    memory = InMemory(lockstep)
    return memory, Share.of(plan, config, 0, memory.memory)._replace(lockstep=lockstep)


def _of_several_machines(plan: EnginePlan) -> LinkedMeeting:
    if plan.parallel.backend != "ray":
        return AtAddress(plan, ranks_token())
    # It starts what loads a model, which starts a group: this module can only name it.
    made: LinkedMeeting = importlib.import_module("appliance.engine.ranks.on_ray").OnRay(plan)
    return made
