"""Canonical weights as float32 torch tensors."""

import numpy as np
import torch

from appliance.kernels.codes import CODE_VALUES, e8m0_to_f32
from appliance.kernels.layout import CODED_LAYOUTS, PAIRED_LAYOUTS, CanonicalWeight, Layout

MAX_ACTIVATION_GROUP = 256


def dequantize(weight: CanonicalWeight) -> torch.Tensor:
    """Returns the weight as f32 [N, K]."""
    if weight.layout in (Layout.F32, Layout.F16):
        return torch.from_numpy(weight.data.astype(np.float32)).reshape(weight.out_features, weight.in_features)
    if weight.layout is Layout.BF16:
        widened = weight.data.astype(np.uint32) << 16
        return torch.from_numpy(widened.view(np.float32)).reshape(weight.out_features, weight.in_features)
    return torch.from_numpy(_dequantize_groups(weight))


def _dequantize_groups(weight: CanonicalWeight) -> np.ndarray:
    values = unpack_int4(weight.data) if weight.layout in PAIRED_LAYOUTS else weight.data
    if weight.layout in CODED_LAYOUTS:
        values = CODE_VALUES[weight.layout][values]
    if weight.scale is None or not weight.group_size:
        raise ValueError(f"a weight of layout {weight.layout} needs scale and group_size")
    grouped = values.astype(np.float32).reshape(weight.out_features, -1, weight.sub_group_size or weight.group_size)
    result: np.ndarray = grouped * _scales(weight, weight.scale, weight.sub_scale)
    if weight.offset is not None:
        result += _scales(weight, weight.offset, weight.sub_offset)
    return result.reshape(weight.out_features, weight.in_features)


def _scales(weight: CanonicalWeight, scale: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Returns f32 [N, groups, 1], or one for each sub-group if there are `factors`."""
    floats = e8m0_to_f32(scale) if scale.dtype == np.uint8 else scale.astype(np.float32)
    scales = floats.reshape(weight.out_features, -1, 1)
    if factors is None:
        return scales
    whole: np.ndarray = scales * factors.astype(np.float32).reshape(weight.out_features, scales.shape[1], -1)
    return whole.reshape(weight.out_features, -1, 1)


def unpack_int4(data: np.ndarray) -> np.ndarray:
    """Unpacks uint8 [N, K/2], low nibble first, to uint8 [N, K] of values 0..15."""
    low, high = data & 15, data >> 4
    return np.stack((low, high), axis=-1).reshape(data.shape[0], -1)


def quantize_activations(x: torch.Tensor, group_size: int) -> torch.Tensor:
    """Rounds x f32 [T, K] to int8 in groups of columns (scale: largest magnitude / 127) and back to f32.

    A group has min(group_size, 256) columns; the last may have fewer.
    """
    columns = min(group_size, MAX_ACTIVATION_GROUP)
    parts = []
    for part in torch.split(x, columns, dim=-1):
        scale = part.abs().amax(dim=-1, keepdim=True) / 127.0
        quantized = torch.where(scale > 0, torch.round(part / scale), torch.zeros_like(part))
        parts.append(quantized * scale)
    return torch.cat(parts, dim=-1)
