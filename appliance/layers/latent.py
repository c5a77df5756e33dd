"""Latent attention (DeepSeek V2, arXiv:2405.04434), absorbed: queries and outputs pass through a matrix of each head,
and all heads attend to one cached vector a token."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import LatentAttentionSpec
from appliance.program.attention import HeadLinear
from appliance.program.caches import KvShape
from appliance.program.operators import HeadNorm, KvWrite, PagedAttention, Rope
from appliance.program.slots import Slot, Span, whole


def emit_latent_attention(builder: ProgramBuilder, spec: LatentAttentionSpec, layer: int, x: Slot) -> Slot:
    """Emits latent attention of x [T, D], without the output projection; returns a slot [T, H * value_dim].

    With c the latent of a token, a score is q_nope . (W_k c) + q_rope . k_rope = (W_k^T q_nope) . c + q_rope . k_rope,
    and an output W_v (sum p c): so c and k_rope are all that is kept, and c is its own value.
    """
    prefix = f"layers.{layer}"
    queries_from, kept = _emit_latents(builder, spec, prefix, x)
    q_nope, q_rope = builder.project(
        queries_from,
        [
            Projection(f"{prefix}.q_nope", spec.num_heads * spec.nope_dim),
            Projection(f"{prefix}.q_rope", spec.num_heads * spec.rope_dim),
        ],
        builder.slot("queries", spec.num_heads * (spec.nope_dim + spec.rope_dim)),
    )
    if spec.rope is not None:
        table, interleaved = builder.rope_table(spec.rope), spec.rope.interleaved
        k_rope = Span(kept.slot, kept.start + spec.kv_rank, spec.rope_dim)
        builder.emit(Rope(q_rope, table, spec.num_heads, spec.rope_dim, spec.rope.rotary_dim, interleaved))
        builder.emit(Rope(k_rope, table, 1, spec.rope_dim, spec.rope.rotary_dim, interleaved))
    width = spec.kv_rank + spec.rope_dim
    q = builder.slot("latent_queries", spec.num_heads * width)
    key_matrices = builder.weight(f"{prefix}.k_up", spec.num_heads * spec.kv_rank, spec.nope_dim)
    builder.emit(HeadLinear(q_nope, key_matrices, q, spec.num_heads, q_rope))
    return _emit_outputs(builder, spec, prefix, q, kept)


def _emit_latents(builder: ProgramBuilder, spec: LatentAttentionSpec, prefix: str, x: Slot) -> tuple[Slot | Span, Span]:
    """Emits the projections into latents and their norms; returns the input of the queries, and what a token keeps."""
    ranks = {"q_a": spec.q_rank or 0, "kv_a": spec.kv_rank + spec.rope_dim}
    parts = [Projection(f"{prefix}.{name}", rank, spec.bias) for name, rank in ranks.items() if rank]
    spans = builder.project(x, parts, builder.slot("latents", sum(ranks.values())))
    kept = spans[-1]
    latents = {"kv_a": Span(kept.slot, kept.start, spec.kv_rank)}
    if spec.q_rank is not None:
        latents["q_a"] = spans[0]
    for name, span in latents.items():
        weight = builder.weight(f"{prefix}.{name}_norm", span.width)
        builder.emit(HeadNorm(span, weight, 1, span.width, spec.norm_eps))
    return latents.get("q_a", x), kept


def _emit_outputs(builder: ProgramBuilder, spec: LatentAttentionSpec, prefix: str, q: Slot, kept: Span) -> Slot:
    """Emits attention over the latents, and each head's value of the result."""
    width = spec.kv_rank + spec.rope_dim
    cache = builder.cache(KvShape(1, width, spec.kv_rank, values_in_keys=True))
    builder.emit(KvWrite(kept, None, cache, 1, width, spec.kv_rank))
    mixed = builder.slot("latent_mix", spec.num_heads * spec.kv_rank)
    builder.emit(
        PagedAttention(
            q=whole(q),
            out=mixed,
            cache=cache,
            num_heads=spec.num_heads,
            num_kv_heads=1,
            head_dim=width,
            scale=spec.scale,
            value_dim=spec.kv_rank,
            values_in_keys=True,
        )
    )
    out = builder.slot("attention", spec.num_heads * spec.value_dim)
    value_matrices = builder.weight(f"{prefix}.v_up", spec.num_heads * spec.value_dim, spec.kv_rank, role="linear")
    builder.emit(HeadLinear(whole(mixed), value_matrices, out, spec.num_heads))
    return out
