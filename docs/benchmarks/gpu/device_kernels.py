"""The part `kernels`: kernels of products and norms at the sizes of an 8B model, beside the same by torch in f32.

Attention, caches, experts, states and draws are compared as parts of whole models, by the part `parity`.
"""

import importlib
import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from device_case import Case, Findings

from appliance.catalog.formats import LOAD_QUANTIZATIONS, WeightForm
from appliance.loading.formats.rounding import quantize

NEAR: Final = 2.0**-6  # of the largest number that is wanted: results are bf16
ROWS: Final = (1, 16, 64)
FORMS: Final[dict[str, WeightForm]] = {
    name: LOAD_QUANTIZATIONS[name]["linear"][0] for name in ("int8", "int4", "fp8", "bitsandbytes")
}


def kernels(case: Case) -> Findings:
    """Yields how far each kernel's results are from torch's, as a share of the largest. Raises RuntimeError where that
    is too far, after all were compared."""
    if case.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported
    far = {}
    for name, got, want in _compared(case):
        distance = float((got.float() - want.float()).abs().max() / want.float().abs().max())
        yield name, round(distance, 6)
        if not distance < NEAR:
            far[name] = distance
    if far:
        raise RuntimeError(f"results are too far from torch's: {far}")


def _compared(case: Case) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yields names, what a kernel made, and what torch made."""
    device = torch.device("cpu" if case.dry else "cuda")
    features, columns = (64, 128) if case.dry else (4096, 4096)
    dtype = torch.float32 if case.dry else torch.bfloat16  # the interpreter multiplies no tiles of bf16
    torch.manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    weight = random(features, columns)
    yield from _norms(random(8, columns), random(columns).float())
    yield from _gates(random(8, columns), random(8, columns))
    for rows in ROWS[:2] if case.dry else ROWS:
        x = random(rows, columns)
        yield f"dense, {rows} rows", _dense(x, weight), x.float() @ weight.float().T
        for name, form in FORMS.items():
            yield f"{name}, {rows} rows", *_coded(x, weight.float().cpu().numpy(), form)


def _norms(x: torch.Tensor, gain: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    module = importlib.import_module("appliance.kernels.gpu.triton.norm")
    out, residual = torch.empty_like(x), x.flip(0).contiguous()
    want = residual + x
    module.norm(x, gain, None, out, 1e-6, "rms", residual, 1.0, False)
    normed = torch.nn.functional.rms_norm(want.float(), want.shape[-1:], gain, 1e-6)
    yield "norm", out, normed
    yield "residual", residual, want


def _gates(gate: torch.Tensor, up: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    module = importlib.import_module("appliance.kernels.gpu.triton.activation")
    out = torch.empty_like(gate)
    module.gated_activation(gate, up, out, "silu")
    yield "gate", out, torch.nn.functional.silu(gate.float()) * up.float()


def _generation(device: torch.device) -> tuple[str, int]:
    kit = importlib.import_module("appliance.kernels.gpu.triton_kit")
    named = importlib.import_module("appliance.kernels.gpu.device").Device(device)
    found: tuple[str, int] = kit.generation_of(named)
    return found


def _dense(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    tiles = importlib.import_module("appliance.kernels.gpu.triton.linear_tiles")
    linear = importlib.import_module("appliance.kernels.gpu.triton.linear")
    kernel, tile = tiles.choose_linear(*weight.shape, len(x), weight.dtype, *_generation(x.device))
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    if kernel == "gemv":
        linear.gemv(x, weight, out, tile)
    else:
        linear.few_rows(x, weight, out, tile, None, None, False, _parts(tile.splits, out))
    return out


def _coded(x: torch.Tensor, weight: np.ndarray, form: WeightForm) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the product with the codes by a kernel of ours, and by torch with the numbers that they stand for."""
    quantized = importlib.import_module("appliance.kernels.gpu.triton.quantized")
    packing = importlib.import_module("appliance.kernels.gpu.triton.packing")
    packed = packing.pack(quantize(weight, form)).to(x.device)
    out = torch.empty(len(x), packed.out_features, dtype=x.dtype, device=x.device)
    kernel, tile = quantized.choose_quantized(packed, len(x), *_generation(x.device))
    if kernel == "gemv":
        quantized.quantized_gemv(x, packed, out, tile)
    else:
        quantized.quantized_rows(x, packed, out, tile, None, None, False, _parts(tile.splits, out))
    numbers = torch.empty(packed.out_features, packed.in_features, device=x.device)
    quantized.dequantize(packed, numbers)
    return out, x.float() @ numbers.T


def _parts(splits: int, out: torch.Tensor) -> torch.Tensor | None:
    return None if splits == 1 else torch.empty(splits, *out.shape, device=out.device)
