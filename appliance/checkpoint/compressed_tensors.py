"""Reads checkpoints of the compressed-tensors library: the tensors that form one matrix become one TensorFacts.

A quantized matrix is stored as `weight` (int8) or `weight_packed` (int32 words of 4- or 8-bit codes, lowest bits first,
with `weight_shape`), with `weight_scale` and, if it is not symmetric, `weight_zero_point`. Floats are `weight` (e4m3),
or bytes of two codes of e2m1 in `weight_packed`; see float8 and float4. Bits and groups follow from the shapes; the
config is read only for options that change the arithmetic and that shapes do not show. Formats and names are those of
compressed_tensors.compressors (pack_quantized, naive_quantized, nvfp4, mxfp4), version 0.20.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.float4 import micro_scaled, nv_scaled
from appliance.checkpoint.float8 import block_of, scaled_e4m3
from appliance.checkpoint.parts import CONFIG, SECTION, bytes_of, expect

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
    block = _block_of(config)
    tensors = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] not in _UNREAD]
    stored = {tensor.name: tensor for tensor in tensors}
    joined: list[TensorFacts] = []
    taken: set[str] = set()
    for name in stored:
        module, _, last = name.rpartition(".")
        if last == _SCALE:
            joined.append(scaled_matrix(root, module, stored, block))
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
        codes, (rows, columns) = packed, _stated_shape(root, packed, stored.get(f"{module}.{_SHAPE}"))
        bits = _packed_bits(packed, rows, columns)
    elif plain is not None and plain.storage == "i8" and len(plain.shape) == 2:
        codes, bits, (rows, columns) = plain, 8, plain.shape
    else:
        found = "nothing" if plain is None else f"{plain.storage} of shape {plain.shape}"
        raise CheckpointError(
            scale.file,
            f"{module}: beside {_SCALE} lies {found}",
            f"int8 matrices and {_PACKED} are read in this version",
        )
    group = _group(scale, rows, columns)
    if zero_point is not None:
        _check_zero_point(zero_point, scale, bits, rows)
    return TensorFacts(
        name=f"{module}.weight",
        stored_name=codes.stored_name,
        shape=(rows, columns),
        storage=cast(Storage, f"int{bits}_{group}{'' if zero_point is None else '_zp'}"),
        file=codes.file,
        offset_bytes=codes.offset_bytes,
        size_bytes=codes.size_bytes,
        scale=scale,
        zero_point=zero_point,
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


def _stated_shape(root: Path, packed: TensorFacts, shape: TensorFacts | None) -> tuple[int, int]:
    """Returns the two numbers of `weight_shape`, the only tensor whose data is read here."""
    if shape is None or shape.shape != (2,) or shape.storage not in ("i32", "i64"):
        raise CheckpointError(packed.file, f"tensor {packed.name!r} lacks a {_SHAPE} of two integers")
    raw = bytes_of(root, shape)
    half = len(raw) // 2
    return int.from_bytes(raw[:half], "little", signed=True), int.from_bytes(raw[half:], "little", signed=True)


def _packed_bits(packed: TensorFacts, rows: int, columns: int) -> int:
    for bits in _CODE_BITS:
        if packed.storage == "i32" and packed.shape == (rows, -(-columns * bits // 32)):
            return bits
    raise CheckpointError(
        packed.file,
        f"tensor {packed.name!r} ({packed.storage} of shape {packed.shape}) does not hold {rows} x {columns} codes",
        "codes of 4 or 8 bits in int32 words are read in this version",
    )


def _group(scale: TensorFacts, rows: int, columns: int) -> str:
    """Returns how many columns share a scale, as in names of storages: `channel` is all, also if all rows share one."""
    if scale.storage not in _SCALE_TYPES:
        raise CheckpointError(
            scale.file, f"tensor {scale.name!r} is {scale.storage}", f"read: {', '.join(_SCALE_TYPES)}"
        )
    if math.prod(scale.shape) == 1 or scale.shape in ((rows,), (rows, 1)):
        return "channel"
    if len(scale.shape) == 2 and scale.shape[0] == rows:
        for size in GROUP_SIZES:
            if scale.shape[1] * size == columns:
                return f"g{size}"
    sizes = ", ".join(map(str, GROUP_SIZES))
    raise CheckpointError(
        scale.file,
        f"tensor {scale.name!r} of shape {scale.shape} does not scale {rows} x {columns} codes",
        f"one scale for the matrix, a row, or a group of {sizes} columns is read in this version",
    )


def _check_zero_point(tensor: TensorFacts, scale: TensorFacts, bits: int, rows: int) -> None:
    """Checks for one int8 for every scale, or int32 words with the codes of several rows, lowest bits first."""
    is_alike = math.prod(tensor.shape) == math.prod(scale.shape) in (1, rows) or tensor.shape == scale.shape
    words = (-(-rows * bits // 32), math.prod(scale.shape) // rows)
    if not (is_alike if tensor.storage == "i8" else tensor.storage == "i32" and tensor.shape == words):
        problem = f"tensor {tensor.name!r} ({tensor.storage} of shape {tensor.shape}) does not fit its scales"
        raise CheckpointError(tensor.file, problem)


def _check_config(config: Mapping[str, Any]) -> None:
    where = SECTION
    expect(config.get("format"), f"{where}.format", (None, *_FORMATS))
    for unread in ("kv_cache_scheme", "transform_config"):
        if config.get(unread):
            raise CheckpointError(CONFIG, f"{where}.{unread} is not in this version", "read: null")
    sparsity = config.get("sparsity_config")
    if sparsity:
        form = sparsity.get("format") if isinstance(sparsity, dict) else sparsity
        expect(form, f"{where}.sparsity_config.format", ("dense",))
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(CONFIG, f"{where}.config_groups must be an object of schemes")
    for name, group in groups.items():
        _check_scheme(group, f"{where}.config_groups.{name}")


def _block_of(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the rows and columns that share a scale of e4m3, if a scheme says so. Raises CheckpointError for two."""
    structures = {
        block_of(group["weights"]["block_structure"], f"{SECTION}.config_groups.{name}.weights.block_structure")
        for name, group in config["config_groups"].items()
        if group["weights"].get("block_structure")
    }
    if len(structures) > 1:
        raise CheckpointError(CONFIG, f"{SECTION}.config_groups have blocks of several sizes", "read: one size")
    return structures.pop() if structures else None


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
