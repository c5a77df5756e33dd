"""Reads the tensors of e2m1 codes: gpt-oss's MXFP4, and NVFP4 as modelopt and compressed-tensors write it.

MXFP4 of gpt-oss: experts [E, rows, columns] as `<name>_blocks` (U8 [E, rows, columns / 32, 16]) and `<name>_scales` (U8
[E, rows, columns / 32], e8m0). The module's parameter `<name>` is transposed, [E, columns, rows], and so are the facts.
NVFP4: a matrix as bytes of two codes, `weight_scale` (F8_E4M3 [N, K / 16]) and an f32 of the whole matrix.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.parts import has_shape, of_type, own_shape

MXFP4: Final = "mxfp4"

_BLOCKS, _SCALES = "_blocks", "_scales"
_MX_GROUP, _NV_GROUP = 32, 16


def join_mxfp4(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every stack of experts joined into one of the parameter's name and shape.

    Raises CheckpointError naming a tensor that has no partner or another shape.
    """
    del root, config  # shapes say all
    stored = {tensor.name: tensor for tensor in tensors}
    found: list[TensorFacts] = []
    for tensor in tensors:
        if tensor.name.endswith(_SCALES):
            partner = tensor.name.removesuffix(_SCALES) + _BLOCKS
            if partner not in stored:
                raise CheckpointError(tensor.file, f"tensor {tensor.name!r} has no {partner!r} beside it")
        elif tensor.name.endswith(_BLOCKS):
            name = tensor.name.removesuffix(_BLOCKS)
            found.append(_stack(name, tensor, stored.get(name + _SCALES)))
        else:
            found.append(tensor)
    return tuple(found)


def _stack(name: str, blocks: TensorFacts, scales: TensorFacts | None) -> TensorFacts:
    if scales is None:
        raise CheckpointError(blocks.file, f"tensor {blocks.name!r} has no {name + _SCALES!r} beside it")
    of_type(blocks, ("u8",))
    of_type(scales, ("u8",))
    if len(blocks.shape) != 4 or blocks.shape[3] != _MX_GROUP // 2:
        problem = f"tensor {blocks.name!r} has the shape {blocks.shape}"
        raise CheckpointError(blocks.file, problem, "experts, rows, groups of 32 columns, and their 16 bytes are read")
    experts, rows, groups, _ = blocks.shape
    has_shape(scales, (experts, rows, groups), name)
    shape = (experts, groups * _MX_GROUP, rows)
    return replace(blocks, name=name, shape=shape, storage="mxfp4", packing="mxfp4", scale=scales, is_transposed=True)


def micro_scaled(module: str, codes: TensorFacts, scales: TensorFacts) -> TensorFacts:
    """Returns a matrix of MXFP4, or a stack: bytes of two codes [N, K / 2] with e8m0 [N, K / 32]. Raises
    CheckpointError."""
    *rows, columns = _shape_of(of_type(codes, ("u8",)))
    has_shape(of_type(scales, ("u8",)), (*rows, columns // _MX_GROUP), module)
    return replace(
        codes, name=f"{module}.weight", shape=(*rows, columns), storage="mxfp4", packing="mxfp4", scale=scales
    )


def nv_scaled(
    module: str,
    codes: TensorFacts,
    scales: TensorFacts,
    whole: TensorFacts,
    packing: Literal["nvfp4", "nvfp4_inverse"],
) -> TensorFacts:
    """Returns a matrix of NVFP4: bytes of two codes [N, K / 2], e4m3 [N, K / 16], one f32; or a stack, in which each
    matrix has its own f32 or all share one. Raises CheckpointError."""
    *rows, columns = _shape_of(of_type(codes, ("u8",)))
    has_shape(of_type(scales, ("f8_e4m3",)), (*rows, columns // _NV_GROUP), module)
    of_type(whole, ("f32",))
    if prod(whole.shape) != 1 and prod(own_shape(whole, rows[:-1], module)) != 1:
        raise CheckpointError(whole.file, f"tensor {whole.name!r} of shape {whole.shape} is not one number")
    return replace(
        codes,
        name=f"{module}.weight",
        shape=(*rows, columns),
        storage="nvfp4",
        packing=packing,
        scale=scales,
        more=(whole,),
    )


def _shape_of(codes: TensorFacts) -> tuple[int, ...]:
    """Returns the shape of a matrix, or of a stack, of bytes of two codes. Raises CheckpointError."""
    if len(codes.shape) not in (2, 3) or 0 in codes.shape or codes.shape[-1] % (_MX_GROUP // 2):
        problem = f"tensor {codes.name!r} of shape {codes.shape} is no matrix of whole groups of {_MX_GROUP} codes"
        raise CheckpointError(codes.file, problem)
    return *codes.shape[:-1], codes.shape[-1] * 2
