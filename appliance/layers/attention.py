"""The attention block: projections into one slot, head norms, rotation, cache write, paged attention."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import AttentionSpec, QueryKeyNorm
from appliance.program.caches import KvShape
from appliance.program.operators import HeadNorm, KvWrite, PagedAttention, Rope
from appliance.program.slots import Slot, Span


def emit_attention(builder: ProgramBuilder, spec: AttentionSpec, layer: int, x: Slot) -> Slot:
    """Emits attention of x [T, D], without the output projection; returns a slot [T, H * d]."""
    prefix = f"layers.{layer}"
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    parts = [
        Projection(f"{prefix}.q", q_width, spec.qkv_bias),
        Projection(f"{prefix}.k", kv_width, spec.qkv_bias),
        Projection(f"{prefix}.v", kv_width, spec.qkv_bias),
    ]
    q, k, v = builder.project(x, parts, builder.slot("qkv", q_width + 2 * kv_width))
    norm = spec.query_key_norm
    if norm is not None and not norm.after_rotation:
        _emit_query_key_norms(builder, spec, norm, prefix, (q, k))
    _emit_rope(builder, spec, q, k)
    if norm is not None and norm.after_rotation:
        _emit_query_key_norms(builder, spec, norm, prefix, (q, k))
    cache = builder.cache(KvShape(spec.num_kv_heads, spec.head_dim, spec.head_dim, spec.window))
    builder.emit(KvWrite(k, v, cache, spec.num_kv_heads, spec.head_dim))
    out = builder.slot("attention", q_width)
    builder.emit(
        PagedAttention(
            q, out, cache, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale, spec.window, spec.soft_cap
        )
    )
    return out


def _emit_query_key_norms(
    builder: ProgramBuilder, spec: AttentionSpec, norm: QueryKeyNorm, prefix: str, spans: tuple[Span, Span]
) -> None:
    for span, name in zip(spans, ("q_norm", "k_norm"), strict=True):
        width = spec.head_dim if norm.over == "head" else span.width
        size = span.width if norm.by_head else width
        weight = builder.weight(f"{prefix}.{name}", size) if norm.norm.weight else None
        bias = builder.weight(f"{prefix}.{name}.bias", size) if norm.norm.bias else None
        kind, eps = norm.norm.kind, norm.norm.eps
        builder.emit(HeadNorm(span, weight, span.width // width, width, eps, kind, bias, norm.by_head))


def _emit_rope(builder: ProgramBuilder, spec: AttentionSpec, q: Span, k: Span) -> None:
    """Emits one operator that rotates both query and key heads: they are adjacent and have the same angles."""
    if spec.rope is None:
        return
    both = Span(q.slot, q.start, q.width + k.width)
    table = builder.rope_table(spec.rope)
    num_heads = spec.num_heads + spec.num_kv_heads
    builder.emit(Rope(both, table, num_heads, spec.head_dim, spec.rope.rotary_dim, spec.rope.interleaved))
