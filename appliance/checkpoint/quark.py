"""Reads checkpoints of AMD's quark in safetensors: FP8, int8 and MXFP4; other types of weights are refused by name.

A matrix is `weight` (F8_E4M3 or I8 [N, K]) with `weight_scale` (one, or one a row) and for int8 `weight_zero_point`,
whose zeros are left; or, in MXFP4, bytes of two codes [N, K / 2] with e8m0 [N, K / 32]. Names and shapes are those of
quark.torch.export (realquantizer) and quark.torch.utils.pack, version 0.13.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.checkpoint.compressed_tensors import scaled_matrix
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.float4 import micro_scaled
from appliance.checkpoint.parts import CONFIG, SECTION, Parts, bytes_of, expect, join_modules, part_of

METHOD: Final = "quark"

_SCHEMES: Final = {
    "fp8_e4m3": ("per_tensor", "per_channel"), "int8": ("per_tensor", "per_channel"), "fp4": ("per_group",),
}  # fmt: skip
_SUFFIXES: Final = ("weight", "weight_scale", "weight_zero_point")
# Scales of activations, which have the type of the plan.
_UNREAD: Final = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
_CODES: Final = ("f8_e4m3", "f8_e5m2", "i8", "u8", "i32")


def join_quark(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    export = config.get("export")
    if isinstance(export, dict):
        expect(export.get("weight_format"), f"{SECTION}.export.weight_format", (None, "real_quantized"))
    for where, weight in _weights(config):
        _check_weight(where, weight)
    kept = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] not in _UNREAD]
    return tuple(join_modules(kept, _SUFFIXES, "weight", lambda module, parts: _join(root, module, parts)))


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Returns the settings of weights, of all modules and of those with their own, with their places."""
    layers = config.get("layer_quant_config")
    named = {f"layer_quant_config.{name}": each for name, each in layers.items()} if isinstance(layers, dict) else {}
    for name, each in {"global_quant_config": config.get("global_quant_config"), **named}.items():
        if isinstance(each, dict) and each.get("weight") is not None:
            yield f"{SECTION}.{name}.weight", each["weight"]


def _check_weight(where: str, weight: Any) -> None:
    if not isinstance(weight, dict):
        raise CheckpointError(CONFIG, f"{where} must be an object", "weights in several steps are not in this version")
    dtype = weight.get("dtype")
    expect(dtype, f"{where}.dtype", tuple(_SCHEMES))
    expect(weight.get("qscheme"), f"{where}.qscheme", _SCHEMES[str(dtype)])
    if dtype == "fp4":
        expect(weight.get("group_size"), f"{where}.group_size", (32,))
        expect(weight.get("scale_format"), f"{where}.scale_format", ("e8m0",))


def _join(root: Path, module: str, parts: Parts) -> TensorFacts:
    weight = parts["weight"]
    if len(parts) == 1 and weight.storage not in _CODES:
        return weight
    scale, zero = part_of(module, parts, "weight_scale", ("f32", "bf16", "f16", "u8")), parts.get("weight_zero_point")
    if weight.storage == "u8":
        return micro_scaled(module, weight, scale)
    if zero is not None and any(bytes_of(root, zero)):
        raise CheckpointError(zero.file, f"tensor {zero.name!r} is not all zeros", "symmetric weights are read")
    return scaled_matrix(root, module, {f"{module}.weight": weight, scale.name: scale}, None)
