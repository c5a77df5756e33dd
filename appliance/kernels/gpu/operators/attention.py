"""Attention over the paged cache, by torch: sequence by sequence."""

from appliance.kernels.gpu.step import DeviceStep
from appliance.kernels.reference.attention import attend
from appliance.program import operators as ops


def kv_write(op: ops.KvWrite, step: DeviceStep) -> None:
    cache = step.bound.caches[op.cache]
    k = step.span(op.k).reshape(-1, op.num_kv_heads, op.head_dim)
    v = None if op.v is None else step.span(op.v).reshape(-1, op.num_kv_heads, op.value_dim or op.head_dim)
    cache.write(step.arrays.slot_mapping[cache.group], k, v)


def paged_attention(op: ops.PagedAttention, step: DeviceStep) -> None:
    """The lengths are those of the host's arrays, so nothing waits for the device."""
    cache, host = step.bound.caches[op.cache], step.arrays.host
    q, out = step.span(op.q).reshape(-1, op.num_heads, op.head_dim), step.slot(op.out)
    tables = step.arrays.block_tables[cache.group]
    sinks = None if op.sinks is None else step.vector(op.sinks)
    starts = host.query_start.tolist()
    with step.bound.device.name:
        for sequence, length in enumerate(host.seq_lens.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            if rows.start < rows.stop:
                keys, values = cache.gather(tables[sequence], length)
                out[rows] = attend(op, q[rows].float(), keys, values, sinks).flatten(1).to(out.dtype)
