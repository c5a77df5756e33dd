"""Reads checkpoints of AQLM: the tensors of one matrix become one TensorFacts.

A matrix of N rows and K columns is `codes` (integers [N / out group, K / in group, codebooks]), `codebooks` (floats
[codebooks, size, out group, in group]) and `scales` (as many as groups of rows). Sizes follow from the shapes.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.parts import Parts, join_modules, of_type, part_of

METHOD: Final = "aqlm"

_MAX_CODES: Final = {"i8": 1 << 8, "i16": 1 << 16}  # of which the codes are indices


def join_aqlm(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a tensor that this version does not support, or tensors that do not match.
    """
    del root, config  # shapes say all
    return tuple(join_modules(tensors, ("codes", "codebooks", "scales"), "codes", _join))


def _join(module: str, parts: Parts) -> TensorFacts:
    codes = of_type(parts["codes"], _MAX_CODES)
    books = part_of(module, parts, "codebooks", ("f16", "bf16"))
    scales = part_of(module, parts, "scales", (books.storage,))
    if len(books.shape) != 4 or not prod(books.shape) or books.shape[1] & (books.shape[1] - 1):
        problem = f"tensor {books.name!r} has the shape {books.shape}"
        raise CheckpointError(books.file, problem, "codebooks, codes (a power of two), rows and columns are read")
    count, size, high, wide = books.shape
    if len(codes.shape) != 3 or not prod(codes.shape) or codes.shape[2] != count or size > _MAX_CODES[codes.storage]:
        problem = f"tensor {codes.name!r} ({codes.storage} of shape {codes.shape}) does not fit codebooks {books.shape}"
        raise CheckpointError(codes.file, problem)
    if prod(scales.shape) != codes.shape[0] or scales.shape[0] != codes.shape[0]:
        problem = f"tensor {scales.name!r} of shape {scales.shape} has not one scale for each of {codes.shape[0]} rows"
        raise CheckpointError(scales.file, problem)
    return replace(
        codes,
        name=f"{module}.weight",
        shape=(codes.shape[0] * high, codes.shape[1] * wide),
        storage=cast(Storage, f"aqlm_{books.storage}"),
        packing="aqlm",
        scale=scales,
        more=(books,),
    )
