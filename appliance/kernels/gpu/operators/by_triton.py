"""Operators by Triton's kernels."""

import torch

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.kernels.gpu.caches import PagedCache
from appliance.kernels.gpu.float8 import E4M3, Float8Matrix, product
from appliance.kernels.gpu.matrices import DenseMatrix
from appliance.kernels.gpu.operators import dense
from appliance.kernels.gpu.operators import experts as loops
from appliance.kernels.gpu.packed_matrix import PackedMatrix, packed_float8
from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.gpu.triton import activation as activations
from appliance.kernels.gpu.triton import norm as norms
from appliance.kernels.gpu.triton import rope as ropes
from appliance.kernels.gpu.triton.attention_decode import decode_attention
from appliance.kernels.gpu.triton.attention_prefill import prefill_attention
from appliance.kernels.gpu.triton.experts import mix, mixture
from appliance.kernels.gpu.triton.gather import gather_rows as gather
from appliance.kernels.gpu.triton.head_linear import head_linear as by_head
from appliance.kernels.gpu.triton.kv_codes import KvTensors
from appliance.kernels.gpu.triton.linear import LinearTile, few_rows, gemv
from appliance.kernels.gpu.triton.linear_tiles import choose_linear
from appliance.kernels.gpu.triton.packing import PackedQuantized
from appliance.kernels.gpu.triton.quantized import choose_quantized, dequantize, quantized_gemv, quantized_rows
from appliance.kernels.gpu.triton.rounding import round_rows
from appliance.kernels.gpu.triton_experts import expert_options
from appliance.kernels.gpu.triton_kit import TritonKit
from appliance.program import operators as ops
from appliance.program.attention import HeadLinear
from appliance.program.record import ActivationKind
from appliance.program.routing import Experts, MixExperts

Rest = tuple[LinearTile, torch.Tensor | None, ActivationKind | None, bool]  # tile, bias, activation, accumulate


def _kit(step: DeviceStep) -> TritonKit:
    assert isinstance(step.bound.kit, TritonKit), "a set with these functions has it"
    return step.bound.kit


def _vector(name: str | None, step: DeviceStep) -> torch.Tensor | None:
    return None if name is None else step.vector(name)


def _tensors(cache: PagedCache) -> KvTensors:
    return KvTensors(cache.keys, cache.values if cache.has_values else None, cache.key_scales, cache.value_scales)


def rms_norm(op: ops.RmsNorm, step: DeviceStep, *, rounds: bool = False) -> None:
    """rounds: to FP8, for the products that alone read the result."""
    residual = None if op.residual is None else step.slot(op.residual)
    weight = _vector(op.weight, step)
    norms.norm(step.slot(op.x), weight, None, step.slot(op.out), op.eps, "rms", residual, op.scale, rounds)


def layer_norm(op: ops.LayerNorm, step: DeviceStep, *, rounds: bool = False) -> None:
    """rounds: as in rms_norm."""
    residual = None if op.residual is None else step.slot(op.residual)
    weight, bias = _vector(op.weight, step), _vector(op.bias, step)
    norms.norm(step.slot(op.x), weight, bias, step.slot(op.out), op.eps, "layer", residual, op.scale, rounds)


def head_norm(op: ops.HeadNorm, step: DeviceStep) -> None:
    weight, bias, out = _vector(op.weight, step), _vector(op.bias, step), step.span(op.out or op.x)
    norms.head_norm(step.span(op.x), weight, bias, out, op.num_heads, op.eps, op.kind, op.by_head)


def rope(op: ops.Rope, step: DeviceStep) -> None:
    ropes.rope(step.span(op.x), step.arrays.positions, step.bound.vectors[op.table], op.num_heads, op.interleaved)


def kv_write(op: ops.KvWrite, step: DeviceStep) -> None:
    cache, v = step.bound.caches[op.cache], None if op.v is None else step.span(op.v)
    slots = step.arrays.slot_mapping[cache.group]
    ropes.kv_write(step.span(op.k), v, slots, _tensors(cache))


def rope_and_write(write: ops.KvWrite, op: ops.Rope, step: DeviceStep) -> None:
    """Runs a Rope, of queries and keys or of keys alone, and the KvWrite of these keys in one kernel."""
    cache, v = step.bound.caches[write.cache], None if write.v is None else step.span(write.v)
    both, width = step.span(op.x), write.k.start - op.x.start
    q, heads = both[:, :width] if width else None, width // op.head_dim
    slots, table = step.arrays.slot_mapping[cache.group], step.bound.vectors[op.table]
    ropes.rope_kv_write(
        q, both[:, width:], v, step.arrays.positions, table, slots, _tensors(cache), heads, op.interleaved
    )


def paged_attention(op: ops.PagedAttention, step: DeviceStep) -> None:
    """Sequences with one new token and those with more are two kernels over one batch."""
    cache, arrays, kit = step.bound.caches[op.cache], step.arrays, _kit(step)
    plan, tables, out = kit.attention(op), arrays.block_tables[cache.group], step.slot(op.out)
    q, tiles = step.span(op.q), arrays.tiles[plan.prefill.rows]
    if arrays.has_single:
        tile = plan.decode(len(arrays.seq_lens))
        decode_attention(
            q, _tensors(cache), tables, arrays.seq_lens, arrays.query_start, out, plan.options, tile,
            kit.attention_workspace,
        )  # fmt: skip
    if len(tiles):
        prefill_attention(
            q, _tensors(cache), tables, tiles, arrays.query_start, arrays.seq_lens, out, plan.options,
            plan.prefill, kit.batch_invariant,
        )  # fmt: skip


def linear(op: ops.Linear, step: DeviceStep, *, is_rounded: bool = False) -> None:
    """Products of many rows are the vendor's library's. is_rounded: the rows of x are numbers of FP8 already."""
    rows = len(step.slot(op.x.slot))
    if rows == 0:
        return
    matrix, kit = step.bound.matrices[op.weight], _kit(step)
    if isinstance(matrix, Float8Matrix):
        _float8_linear(op, matrix, step, is_rounded=is_rounded)
        return
    if isinstance(matrix, PackedMatrix):
        kernel, tile = choose_quantized(matrix.packed, rows, kit.arch, kit.num_processors, kit.batch_invariant)
    elif isinstance(matrix, DenseMatrix):
        sizes = (*matrix.shape, rows, matrix.values.dtype, kit.arch, kit.num_processors)
        kernel, tile = choose_linear(*sizes, kit.batch_invariant)
    else:
        dense.linear(op, step)
        return
    x, out, parts = step.span(op.x), step.span(op.out), kit.parts(tile.splits, rows, op.out.width)
    rest = (tile, _vector(op.bias, step), op.activation, op.accumulate)
    if kernel == "library":
        dense.linear(op, step)
    elif isinstance(matrix, PackedMatrix):
        _few_rows(kernel, x, matrix.packed, out, rest, parts)
    elif kernel == "gemv":
        gemv(x, matrix.values, out, *rest)
    else:
        few_rows(x, matrix.values, out, *rest, parts)


def _few_rows(
    kernel: str, x: torch.Tensor, packed: PackedQuantized, out: torch.Tensor, rest: Rest, parts: torch.Tensor | None
) -> None:
    if kernel == "gemv":
        quantized_gemv(x, packed, out, *rest)
    else:
        quantized_rows(x, packed, out, *rest, parts)


def _float8_linear(op: ops.Linear, matrix: Float8Matrix, step: DeviceStep, *, is_rounded: bool) -> None:
    """Rows are rounded whatever their number, so a row gives what it gives alone: many as codes for the library, few as
    the numbers that these are."""
    x, kit, packed = step.span(op.x), _kit(step), packed_float8(matrix)
    rows, columns = x.shape
    kernel, tile = choose_quantized(packed, rows, kit.arch, kit.num_processors, kit.batch_invariant)
    if kernel == "library":
        codes, scales = kit.codes(rows, columns)
        round_rows(x, codes, scales)
        dense.store_product(op, product(codes.view(E4M3), scales[:, None], matrix, x.dtype), step)
        return
    rounded, parts = x, kit.parts(tile.splits, rows, op.out.width)
    if not is_rounded:
        rounded = kit.rounded(rows, columns)
        round_rows(x, rounded)
    rest = (tile, _vector(op.bias, step), op.activation, op.accumulate)
    _few_rows(kernel, rounded, packed, step.span(op.out), rest, parts)


def head_linear(op: HeadLinear, step: DeviceStep) -> None:
    """Few rows of dense matrices in one kernel; more rows are the vendor's library's."""
    x, matrix, kit = step.span(op.x), step.bound.matrices[op.weight], _kit(step)
    if isinstance(matrix, DenseMatrix) and (len(x) <= FEW_ROWS or kit.batch_invariant):
        tail = None if op.tail is None else step.span(op.tail)
        by_head(x, matrix.values, tail, step.slot(op.out), op.num_heads, kit.batch_invariant)
    else:
        dense.head_linear(op, step)


def activation(op: ops.Activation, step: DeviceStep) -> None:
    if op.kind == "xielu":
        dense.activation(op, step)
    else:
        activations.activation(step.slot(op.x), step.slot(op.out), op.kind)


def gated_activation(op: ops.GatedActivation, step: DeviceStep) -> None:
    activations.gated_activation(step.span(op.gate), step.span(op.up), step.slot(op.out), op.kind)


def gather_rows(op: ops.GatherRows, step: DeviceStep) -> None:
    gather(step.slot(op.x), step.arrays.sampled_rows, step.slot(op.out))


def experts(op: Experts, step: DeviceStep) -> None:
    x, kit = step.slot(op.x), _kit(step)
    matrices = kit.expert_matrices(op, step.bound.matrices)
    if matrices is None or len(x) == 0:
        loops.experts(op, step)
        return
    chosen, factors, out = (step.slot(slot) for slot in (op.experts, op.factors, op.out))
    first_own = None if op.own is None else op.own[0]
    mixture(x, chosen, factors, matrices, expert_options(op), out, kit.experts(op, len(x)), first_own=first_own)


def mix_experts(op: MixExperts, step: DeviceStep) -> None:
    x, factors, out = (step.slot(slot) for slot in (op.x, op.factors, op.out))
    if len(x):
        mix(x, factors, out, weighs=not op.weigh_input)


def embed(op: ops.Embed, step: DeviceStep) -> None:
    """Rows of dense tables in one kernel; of quantized ones, where nothing is added, as they are made floats."""
    if op.own is not None:
        dense.embed(op, step)
        return
    table, ids, out = step.bound.matrices[op.table], step.arrays.token_ids, step.slot(op.out)
    further = None if op.position_table is None else step.bound.matrices[op.position_table]
    if isinstance(table, DenseMatrix) and (further is None or isinstance(further, DenseMatrix)):
        places = None if further is None else (step.arrays.positions, further.values, op.position_offset)
        types = None if op.type_table is None else (step.arrays.token_types, step.bound.vectors[op.type_table])
        gather(table.values, ids, out, op.scale, op.missing_row, places, types)
        dense.put_given(op, step)
    elif isinstance(table, PackedMatrix) and further is None and op.type_table is None and op.missing_row is None:
        dequantize(table.packed, out, ids, op.scale)
        dense.put_given(op, step)
    else:
        dense.embed(op, step)
