"""What the weights of a rank take."""

from appliance.base.units import format_size
from appliance.plan.offload import Offload
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import ELEMENT_BYTES, bias_tables_bytes, rope_tables_bytes
from appliance.plan.types import MemoryItem, PrecisionPlan
from appliance.plan.weights import Weight
from appliance.program.head_matrices import head_matrices


def weights_item(
    program: PlannedProgram, precision: PrecisionPlan, offload: Offload, *, ranks: int, longest: int
) -> MemoryItem:
    """Returns the weights of the first of so many ranks, or of a replica with some of the experts, and the tables for
    sequences of `longest` tokens, which each computes. Of a program that is not divided as ranks will have it, weights
    are divided evenly."""
    tensors = sum(plan.num_tensors for plan in precision.weights)
    planned = sum(plan.planned_bytes for plan in precision.weights)
    is_part = program.num_ranks > 1 or program.is_stage or program.num_replicas > 1
    whose = [f"{ranks} ranks"] if ranks > 1 or program.num_replicas == 1 else []
    whose += [f"{program.num_replicas} replicas"] if program.num_replicas > 1 else []
    own = sum(program.sizes.values()) if is_part else -(-planned // ranks)
    ropes = program.described.compiled.ropes.values() if program.kernels.runs == "programs" else ()
    tables = rope_tables_bytes(ropes, longest)
    change = change_by_heads(program, precision)
    own += change if program.num_ranks > 1 else -(-change // ranks)
    biases = bias_tables_bytes(program.program, longest)
    parts = [f"{tensors} tensors {format_size(planned)}"]
    parts += [f"of which one of {' of '.join(whose)} has {format_size(own)}"] if is_part else []
    parts += [f"over {ranks} ranks"] if not is_part and ranks > 1 else []
    parts += [f"+ rotary tables {format_size(tables)}"] if tables else []
    parts += [f"+ position biases {format_size(biases)}"] if biases else []
    parts += [f"with matrices by head in {precision.activations}"] if change else []
    own -= offload.spared_bytes
    parts += [_streamed(offload)] if offload.layers else []
    return MemoryItem(name="weights", size_bytes=own + tables + biases, formula=" ".join(parts))


def _streamed(offload: Offload) -> str:
    host, buffers = format_size(offload.host_bytes), format_size(offload.buffer_bytes)
    return f"without {host} in host memory, with buffers {buffers} for them"


def change_by_heads(program: PlannedProgram, precision: PrecisionPlan) -> int:
    """Returns what weights take more, or less, since a set on torch keeps matrices by head in the activations' type."""
    if not program.kernels.uses_torch or program.is_outline:
        return 0
    element = ELEMENT_BYTES[precision.activations]
    weights = (program.weights[name] for name in head_matrices(program.program) if name in program.weights)
    return sum(num_elements(each) * element - program.sizes[each.name] for each in weights)


def dense_bytes(program: PlannedProgram, weight: Weight, element: int) -> int:
    """Returns the bytes of a matrix of codes as floats of `element` bytes; of a dense one none."""
    return num_elements(weight) * element if program.form(weight).is_quantized else 0


def num_elements(weight: Weight) -> int:
    """Returns the numbers of a matrix."""
    return weight.copies * weight.rows * (weight.columns or 1)
