"""Matrices as HQQ 0.2.8 stores them: its packing (core/bitpack.py) and its formula, in f32, which loses nothing."""

import torch

from tests.models.stored.scheme import Packed, Scheme


def hqq(bits: int, size: int) -> Scheme:
    def pack(matrix: torch.Tensor) -> Packed:
        groups, most = matrix.reshape(-1, size), (1 << bits) - 1
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scale = ((high - low) / most).bfloat16()
        zero = (-low / scale.float()).round().bfloat16()
        codes = (groups / scale.float() + zero.float()).round().clamp(0, most)
        values = ((codes - zero.float()) * scale.float()).reshape(matrix.shape)
        parts = codes.to(torch.uint8).chunk(8 // bits)
        packed = sum(part << 8 - bits * (1 + place) for place, part in enumerate(parts))
        assert isinstance(packed, torch.Tensor)
        settings = {
            "nbits": torch.tensor(bits, dtype=torch.int32), "group_size": torch.tensor(size, dtype=torch.int32),
            "axis": torch.tensor(1, dtype=torch.int32), "shape": torch.tensor(matrix.shape),
            "packing": torch.tensor([ord(letter) for letter in f"{bits}bit_u8"], dtype=torch.uint8),
            **{name: torch.tensor(0, dtype=torch.uint8) for name in ("view_as_float", "quant_scale", "quant_zero")},
            **{name: torch.tensor(1, dtype=torch.uint8) for name in ("encoded_state_dict", "channel_wise", "optimize")},
        }  # fmt: skip
        return {"W_q": packed, "scale": scale, "zero": zero, **settings}, values

    section = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": bits, "group_size": size}}}
    return Scheme(section, f"int{bits}_g{size}_zp", pack)
