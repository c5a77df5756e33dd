"""The attention block: projections into one slot, head norms, rotation, cache write, paged attention.

An encoder has no cache.
"""

from typing import NamedTuple

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.scale import emit_scale
from appliance.layers.spec import AttentionSpec, QueryKeyNorm
from appliance.program.attention import ScaleByPosition, SigmoidGate
from appliance.program.caches import KvShape
from appliance.program.operators import HeadNorm, KvWrite, PagedAttention, Rope, WholeAttention
from appliance.program.slots import Slot, Span


class _Projected(NamedTuple):
    """The columns of a layer's projections; None for one that it lacks."""

    q: Span
    k: Span | None
    v: Span | None
    gate: Span | None


def emit_attention(builder: ProgramBuilder, spec: AttentionSpec, layer: int, x: Slot) -> Slot:
    """Emits attention of x [T, D], without the output projection; returns a slot [T, H * e]."""
    prefix = f"layers.{layer}"
    parts = _project(builder, spec, prefix, x)
    heads = [span for span in (parts.q, parts.k) if span is not None]
    norm = spec.query_key_norm
    if norm is not None and not norm.after_rotation:
        _emit_query_key_norms(builder, spec, norm, prefix, heads)
    _emit_rope(builder, spec, heads)
    if norm is not None and norm.after_rotation:
        _emit_query_key_norms(builder, spec, norm, prefix, heads)
    if spec.is_whole:
        return _emit_whole(builder, spec, parts)
    if (warmth := spec.temperature) is not None:
        builder.emit(ScaleByPosition(parts.q, warmth.scale, warmth.length, warmth.offset))
    cache = _emit_cache(builder, spec, layer, parts)
    out = builder.slot("attention", spec.num_heads * _value_dim(spec))
    builder.emit(
        PagedAttention(
            q=parts.q,
            out=out,
            cache=cache,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.scale,
            window=spec.window,
            soft_cap=spec.soft_cap,
            chunk=spec.chunk,
            sinks=builder.weight(f"{prefix}.sinks", spec.num_heads) if spec.sinks else None,
            slopes=alibi_slopes(spec.num_heads, spec.alibi) if spec.alibi is not None else None,
            value_dim=spec.value_dim,
        )
    )
    if parts.gate is not None:
        builder.emit(SigmoidGate(out, parts.gate))
    return out


def _emit_whole(builder: ProgramBuilder, spec: AttentionSpec, parts: _Projected) -> Slot:
    """Emits the attention of an encoder. Raises ValueError for what it cannot have."""
    others = spec.temperature, spec.chunk, spec.alibi, spec.soft_cap, spec.value_dim, spec.kv_source
    if any(each is not None for each in others) or spec.sinks or parts.gate or parts.k is None or parts.v is None:
        raise ValueError("attention without a cache has windows, and nothing else beside its heads")
    out = builder.slot("attention", spec.num_heads * spec.head_dim)
    reach = None if spec.window is None else spec.window // 2
    sizes = spec.num_heads, spec.num_kv_heads, spec.head_dim
    bias = None if spec.position_bias is None else builder.bias_table(spec.position_bias, spec.num_heads)
    builder.emit(WholeAttention(parts.q, parts.k, parts.v, out, *sizes, spec.scale, reach, reach, bias))
    return out


def alibi_slopes(num_heads: int, largest: float) -> tuple[float, ...]:
    """Returns the slope of each head (Press et al. 2021): powers of 2^-(largest / n), n the power of two not above
    num_heads; heads beyond n take the odd powers of its square root."""
    count = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-largest * (head + 1) / count) for head in range(count)]
    between = [2.0 ** (-largest * (2 * head + 1) / (2 * count)) for head in range(num_heads - count)]
    return (*first, *between)


def _value_dim(spec: AttentionSpec) -> int:
    return spec.head_dim if spec.value_dim is None else spec.value_dim


def _project(builder: ProgramBuilder, spec: AttentionSpec, prefix: str, x: Slot) -> _Projected:
    """Emits the projections of a layer, side by side in one slot."""
    gates = {"none": 0, "columns": spec.num_heads * _value_dim(spec), "heads": spec.num_heads}[spec.gate]
    has_own = spec.kv_source is None
    widths = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim if has_own else 0,
        "v": spec.num_kv_heads * _value_dim(spec) if has_own else 0,
        "attention_gate": gates,
    }
    parts = [
        Projection(f"{prefix}.{name}", width, spec.qkv_bias and name != "attention_gate")
        for name, width in widths.items()
        if width
    ]
    spans = iter(builder.project(x, parts, builder.slot("qkv", sum(widths.values()))))
    found = {name: next(spans) if width else None for name, width in widths.items()}
    q = found["q"]
    assert q is not None, "every layer has queries"
    return _Projected(q, found["k"], found["v"], found["attention_gate"])


def _emit_cache(builder: ProgramBuilder, spec: AttentionSpec, layer: int, parts: _Projected) -> int:
    """Emits the storing of keys and values; returns the number of the cache that the layer reads."""
    if spec.kv_source is not None:
        return builder.cache_of_layer[spec.kv_source]
    assert parts.k is not None, "a layer without a source has keys"
    reach = spec.window if spec.chunk is None else spec.chunk
    if parts.v is not None:
        emit_scale(builder, parts.v, spec.value_scale)
    cache = builder.cache(KvShape(spec.num_kv_heads, spec.head_dim, _value_dim(spec), reach))
    builder.cache_of_layer[layer] = cache
    builder.emit(KvWrite(parts.k, parts.v, cache, spec.num_kv_heads, spec.head_dim, spec.value_dim))
    return cache


def _emit_query_key_norms(
    builder: ProgramBuilder, spec: AttentionSpec, norm: QueryKeyNorm, prefix: str, spans: list[Span]
) -> None:
    for span, name in zip(spans, ("q_norm", "k_norm"), strict=False):
        width = spec.head_dim if norm.over == "head" else span.width
        size = span.width if norm.by_head else width
        weight = builder.weight(f"{prefix}.{name}", size) if norm.norm.weight else None
        bias = builder.weight(f"{prefix}.{name}.bias", size) if norm.norm.bias else None
        kind, eps = norm.norm.kind, norm.norm.eps
        builder.emit(HeadNorm(span, weight, span.width // width, width, eps, kind, bias, norm.by_head))


def _emit_rope(builder: ProgramBuilder, spec: AttentionSpec, spans: list[Span]) -> None:
    """Emits one operator that rotates both query and key heads: they are adjacent and have the same angles."""
    if spec.rope is None:
        return
    width = sum(span.width for span in spans)
    both = Span(spans[0].slot, spans[0].start, width)
    table = builder.rope_table(spec.rope)
    builder.emit(Rope(both, table, width // spec.head_dim, spec.head_dim, spec.rope.rotary_dim, spec.rope.interleaved))
