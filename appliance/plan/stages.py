"""What pipeline stages take of memory beside what each of them runs."""

from appliance.plan.program import PlannedProgram
from appliance.plan.types import MemoryItem, SchedulerPlan
from appliance.program.stages import num_places


def handed_on_item(program: PlannedProgram, scheduler: SchedulerPlan, *, num_ranks: int) -> tuple[MemoryItem, ...]:
    """Returns a rank's part of the rows that stages hand on, which all ranks share; nothing without
    stages, or where they come as messages."""
    if not program.stages or program.kernels.links_ranks:
        return ()
    places, sampled = num_places(len(program.stages)), scheduler.max_num_sampled or scheduler.max_num_seqs
    widths = [stage.program.kept.width for stage in program.stages[:-1] if stage.program.kept is not None]
    rows = scheduler.max_num_batched_tokens * sum(widths) + sampled * program.program.logits.width
    formula = f"rows that stages hand on and logits, of {places} steps; once for all ranks"
    return (MemoryItem(name="handed_on", size_bytes=-(-4 * places * rows // num_ranks), formula=formula),)
