"""Reads checkpoints that torchao quantized, as transformers saves them: the tensors of one matrix become one.

A tensor subclass is taken apart into `<module>._weight_qdata`, `_weight_scale` and perhaps `_weight_zero_point`:
Int8Tensor and IntxUnpackedToInt8Tensor have int8 codes, Float8Tensor has e4m3; an element is (q - zero point) * scale.
Names are those of torchao.prototype.safetensors, version 0.18.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from appliance.checkpoint.compressed_tensors import scaled_matrix
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.parts import bytes_of, of_type

METHOD: Final = "torchao"

_PART: Final = re.compile(r"(.+)\._weight_(qdata|scale|zero_point|act_quant_scale|act_quant_zero_point|act_pre_scale)")
_UNREAD: Final = ("act_quant_scale", "act_quant_zero_point")  # activations keep the type of the plan, which is wider
_CODES: Final = ("i8", "f8_e4m3")


def join_torchao(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined into one, named `<module>.weight`. `config`: the
    quantization_config.

    Raises CheckpointError naming a tensor that this version does not support, or tensors that do not match.
    """
    del config  # tensors say all
    found: list[TensorFacts] = []
    modules: dict[str, dict[str, TensorFacts]] = {}
    for tensor in tensors:
        part = _PART.fullmatch(tensor.name)
        if part is None:
            found.append(tensor)
        elif part[2] not in _UNREAD:
            modules.setdefault(part[1], {})[part[2]] = tensor
    found += (_join(root, module, parts) for module, parts in modules.items())
    return tuple(sorted(found, key=lambda tensor: (tensor.file, tensor.offset_bytes)))


def _join(root: Path, module: str, parts: Mapping[str, TensorFacts]) -> TensorFacts:
    first = next(iter(parts.values()))
    for name in ("qdata", "scale"):
        if name not in parts:
            raise CheckpointError(first.file, f"{module} has no _weight_{name} beside {first.name!r}")
    if "act_pre_scale" in parts:
        problem = f"tensor {parts['act_pre_scale'].name!r} scales activations, which is not in this version"
        raise CheckpointError(first.file, problem)
    codes, scale, zero = of_type(parts["qdata"], _CODES), parts["scale"], parts.get("zero_point")
    stored = {f"{module}.weight": codes, f"{module}.weight_scale": scale}
    if zero is not None and any(bytes_of(root, of_type(zero, ("i8",)))):
        stored[f"{module}.weight_zero_point"] = zero  # all zeros are what a symmetric matrix has
    block = _block(codes, scale)
    return replace(scaled_matrix(root, module, stored, block), stored_name=codes.stored_name)


def _block(codes: TensorFacts, scale: TensorFacts) -> tuple[int, int] | None:
    """Returns the rows and columns that share a scale of e4m3, where blocks have several rows."""
    if len(codes.shape) != 2 or len(scale.shape) != 2 or not all(scale.shape) or scale.shape[0] in (1, codes.shape[0]):
        return None
    return -(-codes.shape[0] // scale.shape[0]), -(-codes.shape[1] // scale.shape[1])
