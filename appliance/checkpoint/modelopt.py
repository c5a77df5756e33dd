"""Reads checkpoints of NVIDIA's modelopt: FP8 and NVFP4, whose settings may lie in hf_quant_config.json alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.float4 import nv_scaled
from appliance.checkpoint.float8 import UNREAD, joined_e4m3
from appliance.checkpoint.parts import SECTION, Parts, expect, join_modules, part_of

METHOD: Final = "modelopt"
SETTINGS_NAME: Final = "hf_quant_config.json"

_FP8, _NVFP4 = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), "NVFP4"


def join_modelopt(root: Path, config: Mapping[str, Any], tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Returns the tensors with every quantized matrix joined. `config`: the quantization_config, or the section
    `quantization` of hf_quant_config.json.

    Raises CheckpointError naming a field or tensor that this version does not support, or tensors that do not match.
    """
    del root  # shapes say the rest
    algorithm = config.get("quant_algo")
    expect(algorithm, f"{SECTION}.quant_algo", (*_FP8, _NVFP4))
    if algorithm in _FP8:
        return joined_e4m3(tensors, None)
    kept = [tensor for tensor in tensors if tensor.name.rpartition(".")[2] not in UNREAD]
    return tuple(join_modules(kept, ("weight", "weight_scale", "weight_scale_2"), "weight", _nvfp4))


def _nvfp4(module: str, parts: Parts) -> TensorFacts:
    if len(parts) == 1:
        return parts["weight"]
    scales = part_of(module, parts, "weight_scale", ("f8_e4m3",))
    whole = part_of(module, parts, "weight_scale_2", ("f32",))
    return nv_scaled(module, parts["weight"], scales, whole, "nvfp4")
