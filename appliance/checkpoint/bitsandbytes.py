"""Reads checkpoints that bitsandbytes quantized: NF4 and FP4 with one or two levels of scales, and LLM.int8.

Four bits: `weight` (U8 [bytes, 1]) with `weight.absmax`, `weight.quant_map`, `weight.quant_state.bitsandbytes__nf4` (or
fp4: JSON bytes with shape and block sizes) and, if scales are quantized too, `weight.nested_absmax` and
`weight.nested_quant_map`. Eight bits: `weight` (I8 [N, K]) with `SCB` (f32 [N]) and perhaps `weight_format`.
Outliers of LLM.int8 need no tensor: activations keep the type of the plan, which holds them.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.parts import Parts, bytes_of, has_shape, join_modules, of_type

METHOD: Final = "bitsandbytes"

_STATE: Final = "quant_state.bitsandbytes__"
_PARTS: Final = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_KEPT: Final = (64, 128, 256)  # columns of a group


def join_bitsandbytes(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a tensor that this version does not support, or tensors that do not match.
    """
    del config  # tensors say all
    plain, groups = _grouped(tensors)
    found = [_four_bits(root, name, parts) for name, parts in groups.items()]
    suffixes = ("weight", "SCB", "weight_format")
    eights = join_modules(plain, suffixes, "weight", lambda module, parts: _eight_bits(root, module, parts))
    return tuple(sorted((*eights, *found), key=lambda tensor: (tensor.file, tensor.offset_bytes)))


def _grouped(tensors: Sequence[TensorFacts]) -> tuple[list[TensorFacts], dict[str, dict[str, TensorFacts]]]:
    """Returns the tensors that stand alone, and those of matrices of four bits by matrix and part."""
    groups: dict[str, dict[str, TensorFacts]] = {}
    for tensor in tensors:
        name, _, part = tensor.name.partition(".weight.")
        if part in _PARTS or part.startswith(_STATE):
            groups.setdefault(f"{name}.weight", {})[part] = tensor
    taken = {tensor.name for parts in groups.values() for tensor in parts.values()}
    for tensor in tensors:
        if tensor.name in groups:
            groups[tensor.name]["weight"] = tensor
    return [tensor for tensor in tensors if tensor.name not in taken | groups.keys()], groups


def _four_bits(root: Path, name: str, parts: Parts) -> TensorFacts:
    first = next(iter(parts.values()))
    book = next((part.removeprefix(_STATE) for part in parts if part.startswith(_STATE)), None)
    for part in ("weight", "absmax", "quant_map"):
        if part not in parts or book is None:
            raise CheckpointError(first.file, f"{name} has no {part if book else _STATE + 'nf4'} beside {first.name!r}")
    assert book is not None, "checked above"
    state = parts[_STATE + book]
    settings = _settings(root, state)
    rows, columns, size = _sizes(settings, state)
    if book not in ("nf4", "fp4") or columns % size or size % _KEPT[0]:
        problem = f"{name} is {book} of shape {rows} x {columns} in blocks of {size}"
        raise CheckpointError(state.file, problem, "nf4 and fp4 whose rows are whole blocks of 64 or more are read")
    if prod(of_type(parts["weight"], ("u8",)).shape) * 2 != rows * columns:
        raise CheckpointError(first.file, f"tensor {name!r} has not the {rows * columns} codes of its quant_state")
    nested = (parts["nested_absmax"], parts["nested_quant_map"]) if "nested_absmax" in parts else ()
    absmax = of_type(parts["absmax"], ("u8",) if nested else ("f32",))
    if prod(absmax.shape) * size != rows * columns:
        raise CheckpointError(absmax.file, f"tensor {absmax.name!r} has not a scale for each block of {size} codes")
    has_shape(of_type(parts["quant_map"], ("f32",)), (16,), name)
    return replace(
        parts["weight"],
        shape=(rows, columns),
        storage=cast(Storage, f"{book}_g{min(size, _KEPT[-1])}"),
        packing="bitsandbytes_4",
        scale=absmax,
        more=(parts["quant_map"], state, *nested),
    )


def _settings(root: Path, state: TensorFacts) -> dict[str, Any]:
    """Returns the JSON of a quant_state, which alone says the shape."""
    try:
        settings = json.loads(bytes_of(root, state))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(state.file, f"tensor {state.name!r} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise CheckpointError(state.file, f"tensor {state.name!r} is not a JSON object")
    return settings


def _sizes(settings: Mapping[str, Any], state: TensorFacts) -> tuple[int, int, int]:
    """Returns rows, columns and the codes of a block."""
    shape, size = settings.get("shape"), settings.get("blocksize")
    if not isinstance(shape, list) or len(shape) != 2:
        raise CheckpointError(state.file, f"tensor {state.name!r} has no shape of two numbers")
    if not all(type(number) is int and number > 0 for number in (*shape, size)):
        raise CheckpointError(state.file, f"tensor {state.name!r} has impossible sizes: {shape}, blocks of {size}")
    return shape[0], shape[1], cast(int, size)


def _eight_bits(root: Path, module: str, parts: Parts) -> TensorFacts:
    weight, scale = parts["weight"], parts.get("SCB")
    if scale is None:
        if weight.storage == "i8":
            raise CheckpointError(weight.file, f"tensor {weight.name!r} is int8 and has no SCB beside it")
        return weight
    of_type(weight, ("i8",))
    has_shape(of_type(scale, ("f32", "f16", "bf16")), weight.shape[:1], module)
    order = parts.get("weight_format")
    if order is not None and bytes_of(root, order).strip(b"\0"):
        raise CheckpointError(order.file, f"tensor {order.name!r} is not 0, the order of rows, which alone is read")
    return replace(weight, storage="int8_channel", packing="bitsandbytes_8", scale=scale)
