"""Takes one matrix out of a stack, so that readers of matrices know two dimensions only."""

from math import prod

from msgspec.structs import replace

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.matrices import Read


def matrix_of_stack(tensor: TensorFacts, index: int, read: Read) -> tuple[TensorFacts, Read]:
    """Returns the facts of matrix `index` of a stack, and what reads the bytes of its parts by their names.

    A part that is a single number belongs to all matrices; the others are stacked as the tensor is. Raises FormatError
    if there is no such matrix.
    """
    if len(tensor.shape) < 2 or not 0 <= index < tensor.shape[0]:
        raise FormatError(f"matrix {index} is asked of a tensor of the shape {tensor.shape}")
    count = tensor.shape[0]
    stacked = {part.name for part in tensor.parts if prod(part.shape) > 1 or part is tensor}

    def one(part: TensorFacts) -> TensorFacts:
        return (
            replace(part, shape=part.shape[1:], size_bytes=part.size_bytes // count) if part.name in stacked else part
        )

    def read_one(name: str) -> Array:
        raw = read(name)
        return raw.reshape(count, -1)[index] if name in stacked else raw

    return replace(
        one(tensor),
        scale=None if tensor.scale is None else one(tensor.scale),
        zero_point=None if tensor.zero_point is None else one(tensor.zero_point),
        order=None if tensor.order is None else one(tensor.order),
        more=tuple(one(part) for part in tensor.more),
    ), read_one
