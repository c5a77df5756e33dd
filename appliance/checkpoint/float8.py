"""Reads checkpoints of e4m3: transformers' fp8 (DeepSeek, Qwen), fbgemm_fp8, and the matrices of modelopt's FP8.

A matrix is `weight` (F8_E4M3 [N, K]) with `weight_scale` or `weight_scale_inv`, which multiply in spite of the second
name: one of the matrix, one a row, or one a block of rows and columns. Scales of activations and of the KV cache are
left unread: activations and cache keep the types of the plan, which are wider.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.parts import CONFIG, SECTION, Parts, expect, has_shape, join_modules, of_type, own_shape

FP8: Final = "fp8"
FBGEMM: Final = "fbgemm_fp8"
GROUP_SIZES: Final = (32, 64, 128)
UNREAD: Final = ("input_scale", "activation_scale", "input_scale_ub", "k_scale", "v_scale", "q_scale", "prob_scale")

_SCALES: Final = ("weight_scale", "weight_scale_inv")
_SCALE_TYPES: Final = ("f32", "bf16", "f16")


def join_fp8(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every matrix of e4m3 joined with its scales. `config`: the quantization_config.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    del root  # shapes and config say all
    expect(config.get("fmt"), f"{SECTION}.fmt", (None, "e4m3"))
    expect(config.get("activation_scheme"), f"{SECTION}.activation_scheme", (None, "dynamic", "static"))
    return joined_e4m3(tensors, block_of(config.get("weight_block_size"), f"{SECTION}.weight_block_size"))


def joined_e4m3(tensors: Sequence[TensorFacts], block: tuple[int, int] | None) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every matrix of e4m3 joined. block: rows and columns that share a scale, if any do."""
    suffixes = ("weight", *_SCALES, *UNREAD)
    kept = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] not in UNREAD]
    return tuple(join_modules(kept, suffixes, "weight", lambda module, parts: _join(module, parts, block)))


def block_of(value: Any, where: str) -> tuple[int, int] | None:
    """Returns the rows and columns of a block as a config states them. Raises CheckpointError."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
        raise CheckpointError(CONFIG, f"{where} must be two numbers of rows and columns, or null")
    expect(value[1], f"the columns of {where}", GROUP_SIZES)
    return value[0], value[1]


def _join(module: str, parts: Parts, block: tuple[int, int] | None) -> TensorFacts:
    weight = parts["weight"]
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv")
    if scale is None:
        if weight.storage == "f8_e4m3":
            raise CheckpointError(weight.file, f"tensor {weight.name!r} is e4m3 and has no scale beside it")
        return weight
    of_type(weight, ("f8_e4m3",))
    return scaled_e4m3(module, weight, of_type(scale, _SCALE_TYPES), block)


def scaled_e4m3(module: str, weight: TensorFacts, scale: TensorFacts, block: tuple[int, int] | None) -> TensorFacts:
    """Returns codes [N, K], or a stack [E, N, K], with a scale of the matrix, of a row, of columns of a row, or of a
    block; each matrix of a stack has its own, or all share one. Raises CheckpointError for other shapes."""
    if len(weight.shape) not in (2, 3) or 0 in weight.shape:
        raise CheckpointError(weight.file, f"tensor {weight.name!r} of shape {weight.shape} is no matrix")
    *stack, rows, columns = weight.shape
    joined = replace(weight, name=f"{module}.weight", packing="e4m3", scale=scale, storage="f8_channel")
    if prod(scale.shape) == 1:
        return replace(joined, block_rows=rows)
    own = own_shape(scale, stack, module)
    if prod(own) == 1:
        return replace(joined, block_rows=rows)
    if own in ((rows,), (rows, 1)):
        return joined
    high, wide = block or (1, columns // own[-1] if 0 < own[-1] <= columns else columns)
    has_shape(scale, (*stack, -(-rows // high), -(-columns // wide)), module)
    if columns % wide or wide not in GROUP_SIZES:
        problem = f"tensor {scale.name!r} has scales for {wide} of {columns} columns"
        raise CheckpointError(scale.file, problem, f"read: whole groups of {', '.join(map(str, GROUP_SIZES))} columns")
    return replace(joined, storage=cast(Storage, f"f8_g{wide}"), block_rows=high)
