"""Attention over the paged cache, by torch: sequence by sequence."""

from collections.abc import Iterator

from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.reference.attention import attend
from appliance.program import operators as ops


def kv_write(op: ops.KvWrite, step: DeviceStep) -> None:
    cache = step.bound.caches[op.cache]
    k = step.span(op.k).reshape(-1, op.num_kv_heads, op.head_dim)
    v = None if op.v is None else step.span(op.v).reshape(-1, op.num_kv_heads, op.value_dim or op.head_dim)
    cache.write(step.arrays.slot_mapping[cache.group], k, v)


def paged_attention(op: ops.PagedAttention, step: DeviceStep) -> None:
    """Sequences without keys, which pad a step, are left out."""
    cache = step.bound.caches[op.cache]
    q, out = step.span(op.q).reshape(-1, op.num_heads, op.head_dim), step.slot(op.out)
    tables = step.arrays.block_tables[cache.group]
    sinks = None if op.sinks is None else step.vector(op.sinks)
    starts, lengths = _on_host(step)
    with step.bound.device.name:
        for sequence, length in enumerate(lengths):
            rows = slice(starts[sequence], starts[sequence + 1])
            if rows.start < rows.stop and length:
                keys, values = cache.gather(tables[sequence], length)
                for part, end in _parts(rows, length, step.bound.fixed_rows):
                    found = attend(op, q[part].float(), keys[:end], values[:end], sinks)
                    out[part] = found.flatten(1).to(out.dtype)


def _parts(rows: slice, length: int, fixed_rows: int) -> Iterator[tuple[slice, int]]:
    """Yields rows of a sequence that attend together, and how many keys the last of them sees: each row alone where
    rows are to round alike in every chunk."""
    if not fixed_rows:
        yield rows, length
        return
    for row in range(rows.start, rows.stop):
        yield slice(row, row + 1), length - (rows.stop - 1 - row)


def _on_host(step: DeviceStep) -> tuple[list[int], list[int]]:
    """Returns query_start and seq_lens. A GPU is not asked for them: they are the host's arrays. On torch's CPU device
    they are read where a graph finds those of each step."""
    arrays = step.arrays
    if step.bound.device.is_gpu:
        return arrays.host.query_start.tolist(), arrays.host.seq_lens.tolist()
    return arrays.query_start.tolist(), arrays.seq_lens.tolist()
