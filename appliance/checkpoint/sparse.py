"""Reads the sparse matrices of compressed-tensors: the values that are stored, and a bit for each element.

A matrix of N rows and K columns is `compressed` (values row by row: [N, K / 2] in the 2:4 form, else flat), `bitmask`
(U8 [N, K / 8], the first column in the lowest bit) and `shape` (two integers). The unstructured form has `row_offsets`
too, which follow from the bits. Names are those of compressed-tensors 0.10; versions from 0.12 on do not write them.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.parts import Parts, has_shape, integers_of, join_modules, of_type, part_of

FORMATS: Final = ("sparse-24-bitmask", "sparse-bitmask")

_SUFFIXES: Final = ("compressed", "bitmask", "shape", "row_offsets")
_TYPES: Final = ("f32", "f16", "bf16", "f8_e4m3", "i8")


def join_sparse(root: Path, tensors: Sequence[TensorFacts]) -> list[TensorFacts]:
    """Returns the tensors with those of every sparse matrix joined into one, named `<module>.weight`.

    Raises CheckpointError naming a tensor that has no partner, or another type or shape.
    """
    return join_modules(tensors, _SUFFIXES, "compressed", lambda module, parts: _join(root, module, parts))


def _join(root: Path, module: str, parts: Parts) -> TensorFacts:
    values = of_type(parts["compressed"], _TYPES)
    bitmask = part_of(module, parts, "bitmask", ("u8",))
    rows, columns = integers_of(root, part_of(module, parts, "shape", ("i32", "i64")), 2)
    has_shape(bitmask, (rows, -(-columns // 8)), module)
    stored, size = prod(values.shape), rows * columns
    if not size or stored > size or ("row_offsets" not in parts and 2 * stored != size):
        problem = f"tensor {values.name!r} of shape {values.shape} does not hold values of {rows} x {columns} elements"
        raise CheckpointError(values.file, problem, "half of them, or with row_offsets any number, are read")
    name = f"{module.removesuffix('.weight')}.weight"  # some files name the parameter, and others its module
    return replace(values, name=name, shape=(rows, columns), bitmask=bitmask)
