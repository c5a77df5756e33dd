"""Keys and values of 8 bits: a code for each number, and a scale for each token and KV head."""

import torch

CODE_DTYPES = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
LEAST_SCALE = 1e-30  # kernels/cpu/kv_codes.h: its inverse is finite
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_LEAST_NORMAL = {torch.float8_e4m3fn: 2.0**-6, torch.float8_e5m2: 2.0**-14}
_MOST_TURNED = 64  # kernels/cpu/hadamard.h: columns of a block


def to_codes(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the codes [..., d] of x, f32 [..., d], rounded to nearest even, and the scales f32 [...] that make the
    largest magnitude of each row the largest code.

    A float below the least normal one becomes that or zero.
    """
    largest = _LARGEST[dtype]
    scales = (x.abs().amax(-1) / largest).clamp(min=LEAST_SCALE)
    quotients = (x * (1 / scales).unsqueeze(-1)).clamp(-largest, largest)
    if dtype == torch.int8:
        return quotients.round().to(dtype), scales
    least = _LEAST_NORMAL[dtype]
    return torch.where(quotients.abs() < least, (quotients / least).round() * least, quotients).to(dtype), scales


def turned(x: torch.Tensor) -> torch.Tensor:
    """Returns the Hadamard transform of x, f32 [..., d], in blocks of the largest power of two that divides d, up to
    64, scaled so that it is its own inverse.

    It spreads the few large columns of keys, which would make the steps of all others too wide.
    """
    width = x.shape[-1]
    block = min(width & -width, _MOST_TURNED)
    out, distance = x.reshape(-1, block), 1
    while distance < block:
        pairs = out.reshape(-1, block // (2 * distance), 2, distance)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        out = torch.stack((first + second, first - second), dim=2).reshape(-1, block)
        distance *= 2
    return out.div(block**0.5).reshape(x.shape)
