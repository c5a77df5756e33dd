"""Reads checkpoints of HQQ in safetensors: the tensors of one matrix become one TensorFacts.

A matrix of N rows and K columns is stored as `W_q` (codes of all groups: U8 of 2, 4 or 8 bits, I32 of 3), `scale` and
`zero` (one a group), `shape` (two integers), and each setting as a tensor of its own, of which bits and axis are read.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.parts import Parts, group_name, integers_of, join_modules, part_of

METHOD: Final = "hqq"

_PER_WORD: Final = {2: 4, 3: 10, 4: 2, 8: 1}  # codes of so many bits
_SETTINGS: Final = ("nbits", "group_size", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
                    "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config",
                    "channel_wise", "optimize", "round_zero")  # fmt: skip
_SUFFIXES: Final = ("W_q", "scale", "zero", "shape", *_SETTINGS)
_NUMBERS: Final = ("i32", "i64", "u8")


def join_hqq(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a tensor that this version does not support, or tensors that do not match.
    """
    del config  # every matrix has its own settings
    return tuple(join_modules(tensors, _SUFFIXES, "W_q", lambda module, parts: _join(root, module, parts)))


def _join(root: Path, module: str, parts: Parts) -> TensorFacts:
    (bits,) = integers_of(root, part_of(module, parts, "nbits", _NUMBERS), 1)
    codes = part_of(module, parts, "W_q", ("i32",) if bits == 3 else ("u8",))
    scale = part_of(module, parts, "scale", ("f32", "bf16", "f16"))
    zero = part_of(module, parts, "zero", ("f32", "bf16", "f16"))
    rows, columns = integers_of(root, part_of(module, parts, "shape", _NUMBERS), 2)
    for name in ("view_as_float", "quant_scale", "quant_zero"):
        if (part := parts.get(name)) is not None and integers_of(root, part, 1) != (0,):
            raise CheckpointError(part.file, f"tensor {part.name!r} is not 0, which alone is read")
    axis = 1 if (stated := parts.get("axis")) is None else integers_of(root, stated, 1)[0]
    num_groups, count = prod(scale.shape), rows * columns
    if axis not in (0, 1) or not num_groups or count % num_groups or prod(zero.shape) != num_groups:
        problem = f"tensors {scale.name!r} of shape {scale.shape} and {zero.name!r} of shape {zero.shape} do not fit"
        raise CheckpointError(scale.file, problem, f"one for each of the groups of {rows} x {columns} elements")
    if axis == 1 and num_groups % rows:
        problem = f"tensor {scale.name!r} has {num_groups} scales for {rows} rows"
        raise CheckpointError(scale.file, problem, "as many for each row")
    lines, width = (num_groups, count // num_groups) if axis == 1 else (count // num_groups, num_groups)
    words = -(-lines // _PER_WORD[bits]) * width if bits in _PER_WORD else 0
    if prod(codes.shape) != words or (bits != 3 and lines % _PER_WORD.get(bits, 1)):
        problem = f"tensor {codes.name!r} of shape {codes.shape} does not hold {rows} x {columns} codes of {bits} bits"
        raise CheckpointError(codes.file, problem, "whole groups of 2, 3, 4 or 8 bits are read")
    kind = f"{group_name(scale, columns, num_groups // rows)}_zp" if axis == 1 else "spread"
    return replace(
        codes,
        name=f"{module}.weight",
        shape=(rows, columns),
        storage=cast(Storage, f"int{bits}_{kind}"),
        packing="hqq",
        scale=scale,
        zero_point=zero,
    )
