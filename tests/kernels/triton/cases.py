"""Launches of every kernel with the shapes of real models, on torch's meta device: what compiled.py compiles."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from appliance.kernels.gpu.triton.activation import gated_activation
from appliance.kernels.gpu.triton.adapters import add_adapters
from appliance.kernels.gpu.triton.architectures import ARCHITECTURES, architecture
from appliance.kernels.gpu.triton.argmax import argmax
from appliance.kernels.gpu.triton.attention import AttentionOptions
from appliance.kernels.gpu.triton.attention_decode import choose_decode, decode_attention
from appliance.kernels.gpu.triton.attention_prefill import choose_prefill, prefill_attention
from appliance.kernels.gpu.triton.column_states import rg_lru, short_conv
from appliance.kernels.gpu.triton.experts import ExpertMatrices, ExpertOptions, ExpertWorkspace, Matrix, mixture
from appliance.kernels.gpu.triton.gather import gather_rows
from appliance.kernels.gpu.triton.head_linear import head_linear
from appliance.kernels.gpu.triton.kv_codes import KINDS, KvTensors
from appliance.kernels.gpu.triton.launch import dependent
from appliance.kernels.gpu.triton.linear import few_rows, gemv
from appliance.kernels.gpu.triton.linear_tiles import choose_linear
from appliance.kernels.gpu.triton.norm import head_norm, norm
from appliance.kernels.gpu.triton.packing import BOOK, E2M1, E4M3, INTEGERS, PackedQuantized
from appliance.kernels.gpu.triton.quantized import choose_quantized, dequantize, quantized_gemv, quantized_rows
from appliance.kernels.gpu.triton.rope import kv_write, rope, rope_kv_write
from appliance.kernels.gpu.triton.rounding import round_rows
from appliance.kernels.gpu.triton.sampling import SamplerWorkspace, sample
from appliance.kernels.gpu.triton.states import StateTensors, gated_delta, state_space

ARCHS: Final = ("sm80", "sm89", "sm90", "sm100", "gfx90a", "gfx942")
_PROCESSORS = 132
_I32, _F32, _BF16 = torch.int32, torch.float32, torch.bfloat16
Case = Callable[[str], None]  # of an architecture


class AttentionShape(NamedTuple):
    """Query heads, KV heads, widths of keys and values, and what the cache holds."""

    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    options: AttentionOptions
    kv_dtype: torch.dtype = _BF16
    values_in_keys: bool = False


def meta(*shape: int, dtype: torch.dtype = _BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def coded(kv_heads: int, dim: int, value_dim: int | None, dtype: torch.dtype) -> KvTensors:
    """Returns a cache without numbers; value_dim: None for values that are columns of keys."""
    scales = None if dtype == _BF16 else meta(100, kv_heads, 64, dtype=_F32)
    values = None if value_dim is None else meta(100, kv_heads, 64, value_dim, dtype=dtype)
    return KvTensors(meta(100, kv_heads, 64, dim, dtype=dtype), values, scales, scales)


def _norms(arch: str) -> None:
    norm(meta(16, 4096), meta(4096, dtype=_F32), None, meta(16, 4096), 1e-5, residual=meta(16, 4096))
    norm(meta(4, 16, 4096, dtype=_F32), meta(4096, dtype=_F32), None, meta(16, 4096), 1e-5, residual=meta(16, 4096))
    norm(meta(16, 4096), None, None, meta(16, 4096), 1e-5, residual=meta(16, 4096), rounds=True)
    norm(meta(16, 896), meta(896, dtype=_F32), meta(896, dtype=_F32), meta(16, 896), 1e-5, "layer")
    head_norm(meta(16, 32 * 128), meta(128, dtype=_F32), None, meta(16, 32 * 128), 32, 1e-6)


def _ropes(arch: str) -> None:
    positions, table, cache = meta(16, dtype=_I32), meta(8192, 128, dtype=_F32), meta(100, 8, 64, 128)
    rope(meta(16, 32 * 128), positions, table, 32)
    kv = KvTensors(cache, cache)
    rope_kv_write(meta(16, 32 * 128), meta(16, 1024), meta(16, 1024), positions, table, positions, kv, 32)
    kv_write(meta(16, 1024), meta(16, 1024), positions, kv)
    for dtype in KINDS:
        kv = coded(8, 128, 128, dtype)
        rope_kv_write(meta(16, 32 * 128), meta(16, 1024), meta(16, 1024), positions, table, positions, kv, 32)
        kv_write(meta(16, 1024), meta(16, 1024), positions, kv)


def _dependent(arch: str) -> None:
    """Kernels of a decode that begin while those before them end."""
    with dependent(architecture(arch).has_dependent_launch):
        norm(meta(16, 4096), meta(4096, dtype=_F32), None, meta(16, 4096), 1e-5, residual=meta(16, 4096))
        _linear(1, 6144, 4096)(arch)
        _decode(_ATTENTION["128"])(arch)


def _elementwise(arch: str) -> None:
    round_rows(meta(16, 4096), meta(16, 4096))
    round_rows(meta(512, 14336), meta(512, 14336, dtype=torch.uint8), meta(512, dtype=_F32))
    gated_activation(meta(16, 14336), meta(16, 14336), meta(16, 14336), "silu")
    gather_rows(meta(128256, 4096), meta(16, dtype=_I32), meta(16, 4096))
    argmax(meta(16, 128256, dtype=_F32), meta(16, dtype=_I32), meta(512, dtype=_F32), meta(512, dtype=_I32))


def _draws(arch: str) -> None:
    floats, integers, numbers = meta(4, dtype=_F32), meta(4, dtype=_I32), meta(4, dtype=torch.int64)
    space = SamplerWorkspace.allocate(4, "meta")
    for searches in ((True, True), (False, False)):
        sample(
            meta(4, 128256, dtype=_F32), floats, integers, floats, floats, numbers, numbers, integers, space, *searches
        )


def _states(arch: str) -> None:
    """Decodes of Qwen3-Next, Kimi Linear, Mamba 2, Mamba and RecurrentGemma."""

    def states(*shape: int) -> StateTensors:
        return StateTensors(meta(64, *shape, dtype=_F32), meta(17, dtype=_I32), meta(16, 4, dtype=_I32))

    def vector(size: int) -> torch.Tensor:
        return meta(size, dtype=_F32)

    value, heads = meta(16, 32 * 128), meta(16, 32)
    key = meta(16, 16 * 128)
    gated_delta(key, key, value, heads, heads, vector(32), vector(32), value, states(32, 128, 128))
    gated_delta(value, value, value, value, heads, vector(32), vector(4096), value, states(32, 128, 128))
    x, group = meta(16, 80 * 64), meta(16, 128)
    state_space(x, group, group, meta(16, 80), vector(80), vector(80), vector(80), x, states(80, 128, 64))
    x, group = meta(16, 4096), meta(16, 16)
    state_space(x, group, group, x, vector(65536), vector(4096), vector(4096), x, states(16, 4096))
    short_conv(x, vector(4 * 4096), vector(4096), x, states(3, 4096), "silu")
    rg_lru(x, x, x, meta(16, dtype=_I32), vector(4096), vector(4096), vector(4096), x, states(4096))


def _adapters(arch: str) -> None:
    """Query, key and value of 16 slots, at rank 16 and 64."""
    numbers, addresses = meta(16, dtype=_I32), meta(3, 16, 5, dtype=torch.int64)
    for rank in (16, 64):
        space = meta(4 * 16 * 3 * rank, dtype=_F32)
        add_adapters(
            meta(16, 4096), meta(16, 6144), addresses, meta(1), numbers, meta(16, dtype=_F32), space, rank, 4096
        )


def _head_linear(arch: str) -> None:
    """DeepSeek V3's queries and outputs."""
    head_linear(meta(16, 128 * 128), meta(128 * 512, 128), meta(16, 128 * 64), meta(16, 128 * 576), 128)
    head_linear(meta(64, 128 * 512), meta(128 * 128, 512), None, meta(64, 128 * 128), 128)


def _decode(shape: AttentionShape) -> Case:
    heads, kv_heads, dim, value_dim, options, kv_dtype, in_keys = shape

    def call(arch: str) -> None:
        group = heads // kv_heads
        sizes = (group, dim, value_dim, _BF16, arch, 16, kv_heads, 8192, _PROCESSORS)
        tile = choose_decode(*sizes, values_in_keys=in_keys, has_codes=kv_dtype in KINDS)
        decode_attention(
            meta(16, heads * dim), coded(kv_heads, dim, None if in_keys else value_dim, kv_dtype),
            meta(16, 128, dtype=_I32), meta(16, dtype=_I32), meta(17, dtype=_I32), meta(16, heads * value_dim), options,
            tile, meta(2**24, dtype=_F32),
        )  # fmt: skip

    return call


def _prefill(shape: AttentionShape) -> Case:
    heads, kv_heads, dim, value_dim, options, kv_dtype, in_keys = shape

    def call(arch: str) -> None:
        prefill_attention(
            meta(512, heads * dim), coded(kv_heads, dim, None if in_keys else value_dim, kv_dtype),
            meta(16, 128, dtype=_I32), meta(40, 2, dtype=_I32), meta(17, dtype=_I32), meta(16, dtype=_I32),
            meta(512, heads * value_dim), options,
            choose_prefill(dim, value_dim, 64, _BF16, arch, values_in_keys=in_keys, has_codes=kv_dtype in KINDS),
        )  # fmt: skip

    return call


def _linear(rows: int, features: int, columns: int) -> Case:
    def call(arch: str) -> None:
        kernel, tile = choose_linear(features, columns, rows, _BF16, arch, _PROCESSORS)
        x, out, weight = meta(rows, columns), meta(rows, features), meta(features, columns)
        if kernel == "gemv":
            gemv(x, weight, out, tile, meta(features, dtype=_F32))
        else:
            few_rows(x, weight, out, tile, parts=meta(tile.splits, rows, features, dtype=_F32))

    return call


def packed(
    features: int, columns: int, bits: int, kind: int, group: int, scale_type: torch.dtype, sub_group: int = 0,
    has_offset: bool = False,
) -> PackedQuantized:  # fmt: skip
    """Returns a packed weight without numbers."""
    size = sub_group or group
    scale = meta(features, columns // group, dtype=scale_type)
    sub_scale = meta(features, columns // sub_group, dtype=torch.int8) if sub_group else None
    return PackedQuantized(
        features, columns, bits, kind, 0, min(128, size & -size), group, size,
        meta(features, columns * bits // 32, dtype=_I32), scale, scale if has_offset else None, sub_scale,
        sub_scale if has_offset else None, meta(16, dtype=_F32) if kind == BOOK else None,
    )  # fmt: skip


_PACKED = {
    "int4 of 128": packed(28672, 4096, 4, INTEGERS, 128, torch.float16, has_offset=True),
    "q4_k": packed(4096, 14336, 4, INTEGERS, 256, torch.float16, 32, True),
    "q6_k": packed(4096, 4096, 8, INTEGERS, 256, torch.float16, 16, True),
    "mxfp4": packed(5760, 2880, 4, E2M1, 32, torch.uint8),
    "nf4": packed(4096, 4096, 4, BOOK, 64, _F32),
    "int8": packed(4096, 4096, 8, INTEGERS, 4096, _F32),
    "f8 of rows": replace(packed(14336, 4096, 8, E4M3, 4096, _F32), unit=4),
    "f8 of 128": packed(4096, 4096, 8, E4M3, 128, _F32),
}


def _quantized(weight: PackedQuantized) -> Case:
    def call(arch: str) -> None:
        for rows in (1, 16, 32):
            kernel, tile = choose_quantized(weight, rows, arch, _PROCESSORS)
            x, out = meta(rows, weight.in_features), meta(rows, weight.out_features)
            if kernel == "gemv":
                quantized_gemv(x, weight, out, tile)
            else:
                quantized_rows(x, weight, out, tile, parts=meta(tile.splits, *out.shape, dtype=_F32))
        dequantize(weight, meta(weight.out_features, weight.in_features))

    return call


def _experts(
    up: Matrix, down: Matrix, num_experts: int, hidden: int, width: int, options: ExpertOptions,
    first_own: int | None = None,
) -> Case:  # fmt: skip
    def call(arch: str) -> None:
        matrices = ExpertMatrices(num_experts, up, down)
        for tokens in (16, 2048):
            space = ExpertWorkspace.allocate(tokens, 4, matrices, options, hidden, _BF16, "meta")
            experts, factors = meta(tokens, 4, dtype=_I32), meta(tokens, 4, dtype=_F32)
            out = meta(tokens, hidden if first_own is None else 4 * hidden)
            mixture(meta(tokens, hidden), experts, factors, matrices, options, out, space, first_own=first_own)

    return call


_ATTENTION: dict[str, AttentionShape] = {
    "128": AttentionShape(32, 8, 128, 128, AttentionOptions(32, 0.1)),
    "64": AttentionShape(14, 2, 64, 64, AttentionOptions(14, 0.1)),
    "128 windowed capped": AttentionShape(32, 8, 128, 128, AttentionOptions(32, 0.1, 1024, 30.0)),
    "64 sinks": AttentionShape(64, 8, 64, 64, AttentionOptions(64, 0.1, 128, sinks=meta(64, dtype=_F32))),
    "256": AttentionShape(16, 8, 256, 256, AttentionOptions(16, 0.1)),
    "192 and 128": AttentionShape(16, 16, 192, 128, AttentionOptions(16, 0.1)),
    "512": AttentionShape(8, 4, 512, 512, AttentionOptions(8, 0.1)),
    "latent": AttentionShape(128, 1, 576, 512, AttentionOptions(128, 0.1), values_in_keys=True),
    "latent e4m3": AttentionShape(
        128, 1, 576, 512, AttentionOptions(128, 0.1), torch.float8_e4m3fn, values_in_keys=True
    ),
    "128 int8": AttentionShape(32, 8, 128, 128, AttentionOptions(32, 0.1), torch.int8),
    "128 e4m3": AttentionShape(32, 8, 128, 128, AttentionOptions(32, 0.1), torch.float8_e4m3fn),
    "128 e5m2": AttentionShape(32, 8, 128, 128, AttentionOptions(32, 0.1), torch.float8_e5m2),
}
CASES: Final[dict[str, Case]] = {
    "norms": _norms,
    "ropes": _ropes,
    "elementwise": _elementwise,
    "draws": _draws,
    "states": _states,
    "adapters": _adapters,
    "dependent": _dependent,
    "head linear": _head_linear,
    **{f"decode {name}": _decode(shape) for name, shape in _ATTENTION.items()},
    **{f"prefill {name}": _prefill(shape) for name, shape in _ATTENTION.items()},
    "linear 1": _linear(1, 6144, 4096),
    "linear 16": _linear(16, 28672, 4096),
    "linear 64": _linear(64, 4096, 14336),
    **{f"quantized {name}": _quantized(weight) for name, weight in _PACKED.items()},
    "experts": _experts(meta(64 * 2816, 2048), meta(64 * 2048, 1408), 64, 2048, 1408, ExpertOptions(1408, "silu")),
    "experts of a rank": _experts(
        meta(32 * 2816, 2048), meta(32 * 2048, 1408), 32, 2048, 1408, ExpertOptions(1408, "silu"), first_own=32
    ),
    "experts mxfp4": _experts(
        packed(32 * 5760, 2880, 4, E2M1, 32, torch.uint8),
        packed(32 * 2880, 2880, 4, E2M1, 32, torch.uint8),
        32,
        2880,
        2880,
        ExpertOptions(2880, "silu", limit=7.0, alpha=1.702, up_offset=1.0),
    ),
}
assert set(ARCHS) <= set(ARCHITECTURES)
