"""Matrices of e4m3 and e2m1 codes: torch's own types and the OCP formulas, by the names that each method has."""

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

from tests.models.stored.e2m1 import nearest, pairs
from tests.models.stored.scheme import Packed, Scheme


def e4m3(kind: str, method: str = "fp8", *, static: bool = False) -> Scheme:
    """kind: matrix, row, or block. static: with a scale of activations."""
    name = "weight_scale_inv" if method == "fp8" else "weight_scale"
    config: dict[str, object] = {
        "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static" if static else "dynamic"},
        "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    }[method]
    if kind == "block":
        config |= {"weight_block_size": [128, 128] if method == "fp8" else None}

    def pack(matrix: torch.Tensor) -> Packed:
        rows, columns = matrix.shape
        high, wide = {"matrix": (rows, columns), "row": (1, columns), "block": (128, 128)}[kind]
        blocks = torch.nn.functional.pad(matrix, (0, 0, 0, -rows % high)).unfold(0, high, high).unfold(1, wide, wide)
        scale = blocks.abs().amax((2, 3)) / 448.0
        whole = scale.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)
        codes = (matrix / whole).to(torch.float8_e4m3fn)
        parts = {"weight": codes, name: scale if kind != "matrix" else scale.reshape(())}
        if static:
            parts["input_scale"] = torch.tensor(0.5)
        return parts, codes.float() * whole

    return Scheme(config, "f8_g128" if kind == "block" else "f8_channel", pack)


def nvfp4(method: str = "modelopt") -> Scheme:
    """By modelopt the scale of the matrix multiplies; compressed-tensors divides by it, and is asked itself."""

    def pack(matrix: torch.Tensor) -> Packed:
        groups = matrix.reshape(len(matrix), -1, 16)
        whole = matrix.abs().max() / (6.0 * 448.0)
        scale = (groups.abs().amax(-1) / 6.0 / whole).to(torch.float8_e4m3fn)
        step = scale.float() * whole
        codes, values = nearest(groups / step[..., None])
        parts = {"weight": pairs(codes.reshape(matrix.shape)), "weight_scale": scale, "weight_scale_2": whole}
        return parts, (values * step[..., None]).reshape(matrix.shape)

    return Scheme({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", pack)


def compressed(form: str, storage: str, arguments: dict[str, object]) -> Scheme:
    """What the compressed-tensors library itself writes in a `form`, and its own f32 of that."""
    weights = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=form)
    library = BaseCompressor.get_value_from_registry(form)

    def pack(matrix: torch.Tensor) -> Packed:
        tensors = {"weight": matrix, **_scales_of(matrix, weights)}
        parts = library.compress(tensors, scheme)
        return parts, library.decompress(dict(parts), scheme)["weight"]

    group = {"targets": ["Linear"], "weights": weights.model_dump(mode="json"), "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return Scheme(config, storage, pack)


def _scales_of(matrix: torch.Tensor, weights: QuantizationArgs) -> dict[str, torch.Tensor]:
    strategy, size = str(weights.strategy), weights.group_size or matrix.shape[1]
    if weights.type == "int":
        groups = matrix.reshape(len(matrix), -1, size)
        scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), weights)
        return {"weight_scale": scale.half(), "weight_zero_point": zero_point}
    if strategy == "tensor":
        return {"weight_scale": (matrix.abs().max() / 448.0).reshape(1)}
    if strategy == "block":
        high, wide = weights.block_structure
        padded = torch.nn.functional.pad(matrix, (0, 0, 0, -len(matrix) % high))
        return {"weight_scale": padded.unfold(0, high, high).unfold(1, wide, wide).abs().amax((2, 3)) / 448.0}
    most = matrix.reshape(len(matrix), -1, size).abs().amax(-1)
    if weights.num_bits == 8:
        return {"weight_scale": most / 448.0}
    if size == 32:
        return {"weight_scale": torch.exp2((most / 6.0).log2().ceil())}
    whole = 6.0 * 448.0 / matrix.abs().max()
    return {"weight_scale": most / 6.0 * whole, "weight_global_scale": whole.reshape(1)}
