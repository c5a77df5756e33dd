"""What earlier passes found that sizes depend on."""

import msgspec

from appliance.plan.adapters import PlannedAdapters
from appliance.plan.context import ContextRequest
from appliance.plan.draft_model import PlannedDraftModel
from appliance.plan.offload import NOTHING, Offload
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.plan.screen import ScreenRequest
from appliance.plan.types import (
    GraphsPlan,
    PrecisionPlan,
    SchedulerPlan,
    SpeculationPlan,
)


class MemoryNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Results of earlier passes that sizes depend on."""

    precision: PrecisionPlan
    program: PlannedProgram
    parallel: ParallelPlan
    scheduler: SchedulerPlan
    context: ContextRequest
    block_size: int
    num_threads: int
    batch_invariant: bool
    screen: ScreenRequest | None
    graphs: GraphsPlan = GraphsPlan()
    offload: Offload = NOTHING
    speculation: SpeculationPlan | None = None
    adapters: PlannedAdapters | None = None
    draft_model: PlannedDraftModel | None = None
