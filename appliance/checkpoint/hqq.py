"""Reads checkpoints of HQQ in safetensors: the tensors of one matrix become one TensorFacts.

A matrix of N rows and K columns is stored as `W_q` (U8, codes of 2, 4 or 8 bits of all groups), `scale` and `zero` (one
a group), `shape` (two integers), and each setting as a tensor of its own, of which bits, group size and axis are read.
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

_BITS: Final = (2, 4, 8)
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
    codes = part_of(module, parts, "W_q", ("u8",))
    scale = part_of(module, parts, "scale", ("f32", "bf16", "f16"))
    zero = part_of(module, parts, "zero", ("f32", "bf16", "f16"))
    rows, columns = integers_of(root, part_of(module, parts, "shape", _NUMBERS), 2)
    (bits,) = integers_of(root, part_of(module, parts, "nbits", _NUMBERS), 1)
    for name, allowed in (("axis", 1), ("view_as_float", 0), ("quant_scale", 0), ("quant_zero", 0)):
        part = parts.get(name)
        if part is not None and integers_of(root, part, 1) != (allowed,):
            raise CheckpointError(part.file, f"tensor {part.name!r} is not {allowed}, which alone is read")
    if bits not in _BITS or prod(codes.shape) * 8 != rows * columns * bits or rows % (8 // bits):
        problem = f"tensor {codes.name!r} of shape {codes.shape} does not hold {rows} x {columns} codes of {bits} bits"
        raise CheckpointError(codes.file, problem, "whole rows of 2, 4 or 8 bits are read")
    num_groups = prod(scale.shape)
    if not num_groups or num_groups % rows or prod(zero.shape) != num_groups:
        problem = f"tensors {scale.name!r} of shape {scale.shape} and {zero.name!r} of shape {zero.shape} do not fit"
        raise CheckpointError(scale.file, problem, f"as many for each of {rows} rows")
    group = group_name(scale, columns, num_groups // rows)
    return replace(
        codes,
        name=f"{module}.weight",
        shape=(rows, columns),
        storage=cast(Storage, f"int{bits}_{group}_zp"),
        packing="hqq",
        scale=scale,
        zero_point=zero,
    )
