"""Matrices as bitsandbytes 0.50 stores them: NF4 and FP4, with scales of scales or without, and int8.

The formulas are those of bitsandbytes.functional (dequantize_4bit, dequantize_blockwise, int8_vectorwise_dequant). The
library is no dependency; test_stored.py has digests of what it made of these very tensors.
"""

import json

import torch

from tests.models.stored.scheme import Packed, Scheme

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0, -0.0, -0.0625, -8.0, -12.0, -4.0, -6.0, -2.0, -3.0)  # of 12


def four_bits(book: str, size: int = 64, *, nested: bool = False) -> Scheme:
    values = torch.tensor(NF4) if book == "nf4" else torch.tensor(FP4) / 12.0

    def pack(matrix: torch.Tensor) -> Packed:
        blocks = matrix.reshape(-1, size)
        absmax = blocks.abs().amax(1)
        state: dict[str, object] = {
            "quant_type": book, "blocksize": size, "dtype": "float32", "shape": list(matrix.shape),
        }  # fmt: skip
        parts = {"weight.quant_map": values}
        if nested:
            absmax, more = _nested(absmax, state)
            parts |= more
        else:
            parts["weight.absmax"] = absmax
        codes = (blocks / absmax[:, None]).unsqueeze(-1).sub(values).abs().argmin(-1)
        flat = codes.reshape(-1, 2).to(torch.uint8)
        parts["weight"] = (flat[:, :1] << 4) | flat[:, 1:]
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        parts[f"weight.quant_state.bitsandbytes__{book}"] = text
        return parts, (values[codes] * absmax[:, None]).reshape(matrix.shape)

    kept = min(size, 256)
    return Scheme({"quant_method": "bitsandbytes", "load_in_4bit": True}, f"{book}_g{kept}", pack, size)


def _nested(absmax: torch.Tensor, state: dict[str, object]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Scales as codes of a map of 256 values, and the scales that those stand for."""
    offset, places = absmax.mean(), torch.linspace(-1.0, 1.0, 256)
    rest = torch.nn.functional.pad(absmax - offset, (0, -absmax.numel() % 256)).reshape(-1, 256)
    outer = rest.abs().amax(1)
    codes = (rest / outer[:, None]).unsqueeze(-1).sub(places).abs().argmin(-1).to(torch.uint8)
    inner = (places[codes.long()] * outer[:, None]).reshape(-1)[: absmax.numel()] + offset
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
    kept = codes.reshape(-1)[: absmax.numel()]
    return inner, {"weight.absmax": kept, "weight.nested_absmax": outer, "weight.nested_quant_map": places}


def eight_bits() -> Scheme:
    def pack(matrix: torch.Tensor) -> Packed:
        scale = matrix.abs().amax(1)
        codes = (matrix * 127.0 / scale[:, None]).round().to(torch.int8)
        values = codes * (scale * 7.874015718698502e-3)[:, None]
        return {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}, values

    return Scheme({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8_channel", pack)
