"""Tiny checkpoints quantized by the compressed-tensors library: its codes, its files, its config."""

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams

from tests.models.tiny import make_tiny


def write_compressed(name: str, folder: Path, config: dict[str, Any]) -> torch.nn.Module:
    """Writes model `name` with scales of the weights' ranges; returns it as the library dequantizes it, f32."""
    model = make_tiny(name, folder / "plain")
    apply_quantization_config(model, QuantizationConfig.model_validate(config))
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            _set_scales(module, scheme.weights)
            module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    assert compressor is not None
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    for module in model.modules():  # the oracle multiplies plain floats
        if hasattr(module, "quantization_scheme"):
            del module.quantization_scheme
    return model.float().eval()


def scheme(bits: int, group: int | None = None, *, symmetric: bool = True, activations: bool = False) -> dict[str, Any]:
    """The config of one scheme for all Linears but the head. group: columns that share a scale; None for a row."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel"}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if activations else "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights | ({"group_size": group} if group else {}),
                "input_activations": inputs if activations else None,
            }
        },
    }


@torch.no_grad()
def _set_scales(module: torch.nn.Module, weights: Any) -> None:
    matrix = module.get_parameter("weight")
    groups = matrix.reshape(matrix.shape[0], -1, weights.group_size or matrix.shape[1])
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), weights)
    module.get_parameter("weight_scale").copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.get_parameter("weight_zero_point").copy_(zero_point)
