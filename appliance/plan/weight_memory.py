"""What the weights of a rank take."""

from appliance.base.units import format_size
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import bias_tables_bytes, rope_tables_bytes
from appliance.plan.types import MemoryItem, PrecisionPlan


def weights_item(program: PlannedProgram, precision: PrecisionPlan, *, ranks: int, longest: int) -> MemoryItem:
    """Returns the weights of the first of so many ranks, and the tables for sequences of `longest` tokens, which every
    rank computes. Of a program that is not divided as ranks will have it, weights are divided evenly."""
    tensors = sum(plan.num_tensors for plan in precision.weights)
    planned = sum(plan.planned_bytes for plan in precision.weights)
    is_part = program.num_ranks > 1 or program.is_stage
    own = sum(program.sizes.values()) if is_part else -(-planned // ranks)
    ropes = program.described.compiled.ropes.values() if program.kernels.runs == "programs" else ()
    tables = rope_tables_bytes(ropes, longest)
    biases = bias_tables_bytes(program.program, longest)
    parts = [f"{tensors} tensors {format_size(planned)}"]
    parts += [f"of which one of {ranks} ranks has {format_size(own)}"] if is_part else []
    parts += [f"over {ranks} ranks"] if not is_part and ranks > 1 else []
    parts += [f"+ rotary tables {format_size(tables)}"] if tables else []
    parts += [f"+ position biases {format_size(biases)}"] if biases else []
    return MemoryItem(name="weights", size_bytes=own + tables + biases, formula=" ".join(parts))
