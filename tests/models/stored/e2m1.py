"""Codes of e2m1 by the OCP formulas."""

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def mxfp4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks [..., K / 32, 16], scales [..., K / 32], and the f32 of transformers' convert_moe_packed_tensors."""
    groups = matrix.reshape(*matrix.shape[:-1], -1, 32)
    exponent = (groups.abs().amax(-1) / 6.0).log2().ceil().clamp(-127, 127)
    codes, values = nearest(groups * torch.exp2(-exponent)[..., None])
    expected = torch.ldexp(values, exponent.int()[..., None]).reshape(matrix.shape)
    return pairs(codes), (exponent + 127).to(torch.uint8), expected


def nearest(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of e2m1, uint8, and their values."""
    places = (values.abs()[..., None] - E2M1).abs().argmin(-1)
    signs = torch.where(values < 0, -1.0, 1.0)
    return (places + 8 * (values < 0)).to(torch.uint8), E2M1[places] * signs


def pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, the first low."""
    return codes[..., ::2] | codes[..., 1::2] << 4
