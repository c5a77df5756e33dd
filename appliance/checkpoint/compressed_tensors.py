"""Reads checkpoints of the compressed-tensors library: the tensors that form one matrix become one TensorFacts.

A quantized matrix is stored as `weight` (int8) or `weight_packed` (int32 words of 4- or 8-bit codes, lowest bits first,
with `weight_shape`), with `weight_scale` and, if it is not symmetric, `weight_zero_point`. Floats are `weight` (e4m3),
or bytes of two codes of e2m1 in `weight_packed`; see float8 and float4. Bits and groups follow from the shapes; the
config is read only for options that change the arithmetic and that shapes do not show. Formats and names are those of
compressed_tensors.compressors (pack_quantized, naive_quantized, nvfp4, mxfp4), version 0.20.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.float4 import micro_scaled, nv_scaled
from appliance.checkpoint.float8 import block_of, scaled_e4m3
from appliance.checkpoint.parts import CONFIG, SECTION, expect, integers_of, own_shape
from appliance.checkpoint.sparse import FORMATS, join_sparse

METHOD: Final = "compressed-tensors"
GROUP_SIZES: Final = (32, 64, 128)

_FORMATS: Final = ("int-quantized", "pack-quantized", "naive-quantized", "mixed-precision", "dense", "float-quantized",
                   "nvfp4-pack-quantized", "mxfp4-pack-quantized")  # fmt: skip
_GLOBAL: Final = "weight_global_scale"  # divides the scales of NVFP4
_UNREAD: Final = ("input_scale", "input_global_scale")  # activations keep the type of the plan, which is wider
_SCALE, _ZERO_POINT, _SHAPE, _PACKED = "weight_scale", "weight_zero_point", "weight_shape", "weight_packed"
_SCALE_TYPES: Final = ("f32", "bf16", "f16")
_CODE_BITS: Final = (4, 8)


def join_quantized(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    _check_config(config)
    blocks = _blocks_of(config)
    tensors = join_sparse(root, tensors) if _sparsity_of(config) in FORMATS else tensors
    tensors = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] not in _UNREAD]
    stored = {tensor.name: tensor for tensor in tensors}
    joined: list[TensorFacts] = []
    taken: set[str] = set()
    for name in stored:
        module, _, last = name.rpartition(".")
        if last == _SCALE:
            joined.append(scaled_matrix(root, module, stored, _fitting_block(module, stored, blocks)))
            taken.update(f"{module}.{part}" for part in (_SCALE, _ZERO_POINT, _SHAPE, _PACKED, _GLOBAL, "weight"))
    alone = [tensor for tensor in tensors if tensor.name not in taken]
    for tensor in alone:
        if tensor.name.endswith(f".{_PACKED}"):
            raise CheckpointError(tensor.file, f"tensor {tensor.name!r} has no {_SCALE} beside it")
    return tuple(sorted((*alone, *joined), key=lambda tensor: (tensor.file, tensor.offset_bytes)))


def scaled_matrix(
    root: Path, module: str, stored: Mapping[str, TensorFacts], block: tuple[int, int] | None
) -> TensorFacts:
    """Returns the matrix of a module that has a `weight_scale` among the tensors stored, by name.

    block: rows and columns that share a scale of e4m3. Raises CheckpointError for tensors that do not match.
    """
    scale = stored[f"{module}.{_SCALE}"]
    return _join_floats(module, scale, stored, block) or _join(root, module, scale, stored)


def _join(root: Path, module: str, scale: TensorFacts, stored: Mapping[str, TensorFacts]) -> TensorFacts:
    zero_point = stored.get(f"{module}.{_ZERO_POINT}")
    packed, plain = stored.get(f"{module}.{_PACKED}"), stored.get(f"{module}.weight")
    if packed is not None:
        codes, shape = packed, _stated_shape(root, packed, stored.get(f"{module}.{_SHAPE}"))
        bits = _packed_bits(packed, shape)
    elif plain is not None and plain.storage == "i8" and len(plain.shape) in (2, 3):
        codes, bits, shape = plain, 8, plain.shape
    else:
        found = "nothing" if plain is None else f"{plain.storage} of shape {plain.shape}"
        raise CheckpointError(
            scale.file,
            f"{module}: beside {_SCALE} lies {found}",
            f"int8 matrices and {_PACKED} are read in this version",
        )
    if 0 in shape:
        raise CheckpointError(codes.file, f"tensor {codes.name!r} of shape {codes.shape} has no codes")
    group = _group(module, scale, shape)
    if zero_point is not None:
        _check_zero_point(module, zero_point, scale, bits, shape)
    return TensorFacts(
        name=f"{module}.weight",
        stored_name=codes.stored_name,
        shape=shape,
        storage=cast(Storage, f"int{bits}_{group}{'' if zero_point is None else '_zp'}"),
        file=codes.file,
        offset_bytes=codes.offset_bytes,
        size_bytes=codes.size_bytes,
        scale=scale,
        zero_point=zero_point,
        bitmask=codes.bitmask,
    )


def _join_floats(
    module: str, scale: TensorFacts, stored: Mapping[str, TensorFacts], block: tuple[int, int] | None
) -> TensorFacts | None:
    """Returns a matrix of e4m3, NVFP4 or MXFP4; None if the codes are integers."""
    plain, packed, whole = (stored.get(f"{module}.{part}") for part in ("weight", _PACKED, _GLOBAL))
    if plain is not None and plain.storage == "f8_e4m3":
        return scaled_e4m3(module, plain, scale, block)
    if packed is None or packed.storage != "u8":
        return None
    if whole is not None:
        return nv_scaled(module, packed, scale, whole, "nvfp4_inverse")
    return micro_scaled(module, packed, scale)


def _stated_shape(root: Path, packed: TensorFacts, shape: TensorFacts | None) -> tuple[int, ...]:
    """Returns the numbers of `weight_shape`, the only tensor whose data is read here: as many as the codes have."""
    count = len(packed.shape)
    if shape is None or count not in (2, 3) or shape.shape != (count,) or shape.storage not in ("i32", "i64"):
        number = "three" if count == 3 else "two"
        raise CheckpointError(packed.file, f"tensor {packed.name!r} lacks a {_SHAPE} of {number} integers")
    return integers_of(root, shape, count)


def _packed_bits(packed: TensorFacts, shape: tuple[int, ...]) -> int:
    for bits in _CODE_BITS:
        if packed.storage == "i32" and packed.shape == (*shape[:-1], -(-shape[-1] * bits // 32)):
            return bits
    raise CheckpointError(
        packed.file,
        f"tensor {packed.name!r} ({packed.storage} of shape {packed.shape}) does not hold {_sizes(shape)} codes",
        "codes of 4 or 8 bits in int32 words are read in this version",
    )


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _group(module: str, scale: TensorFacts, shape: tuple[int, ...]) -> str:
    """Returns how many columns share a scale, as in names of storages: `channel` is all, also if all rows share one."""
    if scale.storage not in _SCALE_TYPES:
        raise CheckpointError(
            scale.file, f"tensor {scale.name!r} is {scale.storage}", f"read: {', '.join(_SCALE_TYPES)}"
        )
    *stack, rows, columns = shape
    if math.prod(scale.shape) == 1:
        return "channel"
    own = own_shape(scale, stack, module)
    if math.prod(own) == 1 or own in ((rows,), (rows, 1)):
        return "channel"
    if len(own) == 2 and own[0] == rows:
        for size in GROUP_SIZES:
            if own[1] * size == columns:
                return f"g{size}"
    sizes = ", ".join(map(str, GROUP_SIZES))
    raise CheckpointError(
        scale.file,
        f"tensor {scale.name!r} of shape {scale.shape} does not scale {_sizes(shape)} codes",
        f"one scale for the matrix, a row, or a group of {sizes} columns is read in this version",
    )


def _check_zero_point(module: str, tensor: TensorFacts, scale: TensorFacts, bits: int, shape: tuple[int, ...]) -> None:
    """Checks for one int8 for every scale, or int32 words with the codes of several rows, lowest bits first."""
    *stack, rows, _ = shape
    own_shape(tensor, stack, module)
    num_scales = math.prod(scale.shape) // math.prod(stack)  # of a matrix; none if all matrices share one
    is_alike = math.prod(tensor.shape) == math.prod(scale.shape) and num_scales in (1, rows)
    is_alike = is_alike or tensor.shape == scale.shape
    words = (*stack, -(-rows * bits // 32), num_scales // rows)
    if not (is_alike if tensor.storage == "i8" else tensor.storage == "i32" and tensor.shape == words):
        problem = f"tensor {tensor.name!r} ({tensor.storage} of shape {tensor.shape}) does not fit its scales"
        raise CheckpointError(tensor.file, problem)


def _check_config(config: Mapping[str, Any]) -> None:
    where = SECTION
    expect(config.get("format"), f"{where}.format", (None, *_FORMATS))
    for unread in ("kv_cache_scheme", "transform_config"):
        if config.get(unread):
            raise CheckpointError(CONFIG, f"{where}.{unread} is not in this version", "read: null")
    expect(_sparsity_of(config), f"{where}.sparsity_config.format", (None, "dense", *FORMATS))
    groups = config.get("config_groups")
    if not groups and _sparsity_of(config) in FORMATS:
        return  # sparse, and not quantized
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(CONFIG, f"{where}.config_groups must be an object of schemes")
    for name, group in groups.items():
        _check_scheme(group, f"{where}.config_groups.{name}")


def _sparsity_of(config: Mapping[str, Any]) -> Any:
    """Returns the format of sparse matrices, or what stands in its place; None if there are none."""
    sparsity = config.get("sparsity_config")
    return (sparsity.get("format") if isinstance(sparsity, dict) else sparsity) or None


def _fitting_block(
    module: str, stored: Mapping[str, TensorFacts], blocks: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """Returns the block that the shapes of a matrix and its scale tell; the only one where there is one.

    Raises CheckpointError if several fit.
    """
    weight, scale = stored.get(f"{module}.weight"), stored[f"{module}.{_SCALE}"]
    if len(blocks) < 2 or weight is None or len(weight.shape) < 2:
        return next(iter(blocks), None)
    rows, columns = weight.shape[-2:]
    fitting = [each for each in blocks if scale.shape[-2:] == (-(-rows // each[0]), -(-columns // each[1]))]
    if len(fitting) > 1:
        problem = f"tensor {scale.name!r} of shape {scale.shape} may scale blocks of several sizes of {weight.shape}"
        raise CheckpointError(scale.file, problem, f"in {SECTION}: {', '.join(map(_sizes, fitting))}")
    return next(iter(fitting), None)


def _blocks_of(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Returns the rows and columns that share a scale of e4m3 in some scheme, each once."""
    structures = {
        block_of(group["weights"]["block_structure"], f"{SECTION}.config_groups.{name}.weights.block_structure")
        for name, group in (config.get("config_groups") or {}).items()
        if group["weights"].get("block_structure")
    }
    return sorted(size for size in structures if size is not None)


def _check_scheme(group: Any, where: str) -> None:
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise CheckpointError(CONFIG, f"{where} must be an object with weights")
    expect(group.get("format"), f"{where}.format", (None, *_FORMATS))
    weights = group["weights"]
    expect(weights.get("type", "int"), f"{where}.weights.type", ("int", "float"))
    expect(weights.get("num_bits"), f"{where}.weights.num_bits", _CODE_BITS)
    is_float = weights.get("type") == "float"
    floats = ("block", "tensor_group") if is_float else ()
    expect(weights.get("strategy"), f"{where}.weights.strategy", (None, "tensor", "channel", "group", *floats))
    expect(weights.get("actorder"), f"{where}.weights.actorder", (None, False, "weight", "static"))
    expect(group.get("output_activations"), f"{where}.output_activations", (None,))
    inputs = group.get("input_activations")
    if inputs is None:
        return
    if not isinstance(inputs, dict):
        raise CheckpointError(CONFIG, f"{where}.input_activations must be an object or null")
    expect(inputs.get("type", "int"), f"{where}.input_activations.type", ("float",) if is_float else ("int",))
    if not is_float:
        expect(inputs.get("num_bits"), f"{where}.input_activations.num_bits", (8,))
        expect(inputs.get("dynamic"), f"{where}.input_activations.dynamic", (True,))
