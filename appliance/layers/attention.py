"""The attention block: projections into one slot, head norms, rotation, cache write, paged attention.

An encoder has no cache.
"""

from typing import NamedTuple

from appliance.layers.adapter import Adapter
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.scale import emit_scale
from appliance.layers.spec import AttentionSpec, QueryKeyNorm
from appliance.program.attention import ScaleByPosition
from appliance.program.caches import KvShape
from appliance.program.operators import GatedActivation, HeadNorm, KvWrite, PagedAttention, Rope, WholeAttention
from appliance.program.slots import Slot, Span, whole


class _Projected(NamedTuple):
    """The columns of a layer's projections; None for a gate that it lacks, and for keys and values of another layer."""

    q: Span
    k: Span | None
    v: Span | None
    gate: Span | None


class BlockWeights(NamedTuple):
    """The weights of a block that layers share: the prefix of their names, and what a layer adds to its projections."""

    prefix: str
    adapter: Adapter | None


def emit_attention(
    builder: ProgramBuilder, spec: AttentionSpec, layer: int, x: Slot, block: BlockWeights | None = None
) -> Slot:
    """Emits attention of x [T, D], without the output projection; returns a slot [T, H * e]. block: of its weights,
    where they are not the layer's own."""
    prefix, adapter = BlockWeights(f"layers.{layer}", None) if block is None else block
    parts = _project(builder, spec, prefix, x)
    if adapter is not None:
        for name, span in zip(("q", "k", "v"), parts[:3], strict=True):
            if span is not None:
                adapter.emit(builder, f"{name}.low", x, {name: span})
    heads = [parts.q] if parts.k is None else [parts.q, parts.k]
    norm = spec.query_key_norm
    _emit_values(builder, spec, parts)
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
    if parts.gate is None:
        return out
    gated = builder.slot("attention_gated", out.width)
    builder.emit(GatedActivation(parts.gate, whole(out), gated, "sigmoid"))
    return gated


def _emit_whole(builder: ProgramBuilder, spec: AttentionSpec, parts: _Projected) -> Slot:
    """Emits the attention of an encoder. Raises ValueError for what it cannot have."""
    others = spec.temperature, spec.chunk, spec.alibi, spec.soft_cap, spec.value_dim, spec.kv_layer
    if any(each is not None for each in others) or spec.sinks or spec.gated:
        raise ValueError("attention without a cache has windows, and nothing else beside its heads")
    assert parts.k is not None, "only a layer with kv_layer has no keys"
    assert parts.v is not None, "only a layer with kv_layer has no values"
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
    """Emits the projections of a layer, side by side in one slot. Values that are keys have columns at its end."""
    widths = {"q": spec.num_heads * spec.head_dim}
    if spec.kv_layer is None:
        widths["k"] = spec.num_kv_heads * spec.head_dim
        if not spec.values_are_keys:
            widths["v"] = spec.num_kv_heads * _value_dim(spec)
    parts = [Projection(f"{prefix}.{name}", width, spec.qkv_bias) for name, width in widths.items()]
    if spec.gated:
        parts.append(Projection(f"{prefix}.attention_gate", spec.num_heads * _value_dim(spec)))
    behind = widths["k"] if spec.kv_layer is None and spec.values_are_keys else 0
    slot = builder.slot("qkv", sum(part.out_features for part in parts) + behind)
    spans = dict(zip((part.weight.rpartition(".")[2] for part in parts), builder.project(x, parts, slot), strict=True))
    if behind:
        spans["v"] = Span(slot, slot.width - behind, behind)
    return _Projected(spans["q"], spans.get("k"), spans.get("v"), spans.get("attention_gate"))


def _emit_values(builder: ProgramBuilder, spec: AttentionSpec, parts: _Projected) -> None:
    """Emits the norm of values, which also moves them where they are keys. Raises ValueError for keys without one."""
    if parts.v is None:
        return
    if spec.value_norm is None:
        if spec.values_are_keys:
            raise ValueError("values that are keys have a norm of their own")
        return
    norm, source = spec.value_norm, parts.k if spec.values_are_keys else parts.v
    if norm.weight or norm.bias or source is None:
        raise ValueError("a norm of values has no vectors")
    dim = _value_dim(spec)
    builder.emit(HeadNorm(source, None, spec.num_kv_heads, dim, norm.eps, norm.kind, out=parts.v))


def _emit_cache(builder: ProgramBuilder, spec: AttentionSpec, layer: int, parts: _Projected) -> int:
    """Emits the storing of keys and values; returns the number of the cache, which is that of another layer where the
    layer has none of its own."""
    if spec.kv_layer is not None:
        return builder.layer_caches[spec.kv_layer]
    assert parts.k is not None, "only a layer with kv_layer has no keys"
    assert parts.v is not None, "only a layer with kv_layer has no values"
    reach = None if spec.keeps_all else spec.window if spec.chunk is None else spec.chunk
    emit_scale(builder, parts.v, spec.value_scale)
    cache = builder.cache(KvShape(spec.num_kv_heads, spec.head_dim, _value_dim(spec), reach))
    builder.layer_caches[layer] = cache
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
