"""GPTQ and AWQ as their documents say, for want of wheels of their libraries: packing, and the formula that undoes it.

GPTQ: AutoGPTQ's qlinear_cuda.py (pack, and the torch path of forward) and GPTQModel's conversion of v1 to v2. AWQ:
AutoAWQ's packing_utils.py (dequantize_gemm). Both compute (code - zero point) * scale in the type of the scales, f16.
"""

import torch

from tests.models.stored.scheme import Packed, Scheme

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq(bits: int, size: int, *, symmetric: bool = True, version: int = 1, ordered: bool = False) -> Scheme:
    """size: columns of a group, or -1."""
    config = {
        "quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": ordered,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    group = "order" if ordered else "channel" if size == -1 else f"g{size}"
    storage = f"int{bits}_{group}{'' if symmetric or ordered else '_zp'}"

    def pack(matrix: torch.Tensor) -> Packed:
        order = _order(matrix.shape[1], size, ordered)
        codes, zeros, scales = quantized(matrix, bits, order, symmetric)
        values = (codes - zeros[order].T) * scales[order].T.float()
        stored = zeros if version == 2 else (zeros - 1) % (1 << bits)
        parts = {
            "qweight": words(codes.T, bits), "qzeros": words(stored.T, bits).T, "scales": scales, "g_idx": order.int(),
        }  # fmt: skip
        return parts, values

    return Scheme(config, storage, pack)


def awq(size: int) -> Scheme:
    def pack(matrix: torch.Tensor) -> Packed:
        order = _order(matrix.shape[1], size, False)
        codes, zeros, scales = quantized(matrix, 4, order, False)
        parts = {"qweight": awq_words(codes.T), "qzeros": awq_words(zeros), "scales": scales}
        return parts, (codes - zeros[order].T) * scales[order].T.float()

    config = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    return Scheme(config, "int4_channel_zp" if size == -1 else f"int4_g{size}_zp", pack)


def _order(num_columns: int, size: int, ordered: bool) -> torch.Tensor:
    """The group of each column."""
    plain = torch.arange(num_columns) // (num_columns if size == -1 else size)
    return (
        plain[torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))] if ordered else plain
    )


def quantized(
    matrix: torch.Tensor, bits: int, order: torch.Tensor, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K] and zero points [groups, N], int64, and scales f16 [groups, N]."""
    most, rows = (1 << bits) - 1, []
    for group in range(int(order.max()) + 1):
        columns = matrix[:, order == group]
        low, high = columns.amin(1).clamp(max=0.0), columns.amax(1).clamp(min=0.0)
        if symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / most).half()
        zero = torch.full_like(low, (most + 1) // 2) if symmetric else (-low / scale.float()).round().clamp(0, most)
        rows.append((scale, zero))
    scales, zeros = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    codes = (matrix / scales[order].T.float() + zeros[order].T).round().clamp(0, most)
    return codes.long(), zeros.long(), scales


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs [rows, columns] along the rows, lowest bits first: int32 [rows * bits / 32, columns]."""
    stream = (codes[:, None, :] >> torch.arange(bits)[None, :, None] & 1).reshape(-1, 32, codes.shape[1])
    packed = (stream << torch.arange(32)[None, :, None]).sum(1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def awq_words(codes: torch.Tensor) -> torch.Tensor:
    """Packs [rows, columns] along the columns in AWQ's order: int32 [rows, columns / 8]."""
    eights = codes.reshape(codes.shape[0], -1, 8)[..., list(AWQ_ORDER)]
    packed = (eights << (torch.arange(8) * 4)).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()
