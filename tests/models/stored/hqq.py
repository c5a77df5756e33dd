"""Matrices as HQQ 0.2.8 stores them: its packing (core/bitpack.py) and its formula, in f32, which loses nothing."""

import torch

from tests.models.stored.scheme import Packed, Scheme


def hqq(bits: int, size: int, axis: int = 1) -> Scheme:
    def pack(matrix: torch.Tensor) -> Packed:
        groups, most = matrix.reshape((-1, size) if axis == 1 else (size, -1)), (1 << bits) - 1
        low, high = groups.amin(axis, keepdim=True), groups.amax(axis, keepdim=True)
        scale = ((high - low) / most).bfloat16()
        zero = (-low / scale.float()).round().bfloat16()
        codes = (groups / scale.float() + zero.float()).round().clamp(0, most)
        values = ((codes - zero.float()) * scale.float()).reshape(matrix.shape)
        packed = _packed(codes, bits)
        settings = {
            "nbits": torch.tensor(bits, dtype=torch.int32), "group_size": torch.tensor(size, dtype=torch.int32),
            "axis": torch.tensor(axis, dtype=torch.int32), "shape": torch.tensor(matrix.shape),
            "packing": torch.tensor([ord(letter) for letter in f"{bits}bit_u8"], dtype=torch.uint8),
            **{name: torch.tensor(0, dtype=torch.uint8) for name in ("view_as_float", "quant_scale", "quant_zero")},
            **{name: torch.tensor(1, dtype=torch.uint8) for name in ("encoded_state_dict", "channel_wise", "optimize")},
        }  # fmt: skip
        return {"W_q": packed, "scale": scale, "zero": zero, **settings}, values

    section = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": bits, "group_size": size}}}
    return Scheme(section, f"int{bits}_g{size}_zp" if axis == 1 else f"int{bits}_spread", pack)


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Ten codes of 3 bits lie in 32 bits, after rows of zeros make their number a multiple of ten."""
    count, top, kind = (10, 27, torch.int32) if bits == 3 else (8 // bits, 8 - bits, torch.uint8)
    lines = torch.nn.functional.pad(codes, (0, 0, 0, -len(codes) % count)).to(kind)
    words = sum(part << top - bits * place for place, part in enumerate(lines.chunk(count)))
    assert isinstance(words, torch.Tensor)
    return words
