"""The one decoder: compiles a DecoderSpec into a StepProgram.

The residual stream is the slot `hidden`. A block's output waits in `branch` and is added by the next norm, which reads
the sum, so an addition never costs a pass of its own. After the attention of the last layer, only the rows whose logits
are needed are computed: a prefill chunk that samples nothing skips the last feed-forward and the head.
"""

from collections.abc import Hashable, Mapping

from appliance.layers.attention import emit_attention
from appliance.layers.experts import emit_experts
from appliance.layers.feed_forward import emit_feed_forward
from appliance.layers.norms import emit_norm
from appliance.layers.program import CompiledDecoder, ProgramBuilder, Projection
from appliance.layers.spec import DecoderSpec, ExpertsSpec
from appliance.program.operators import Embed, GatherRows, Linear, SoftCap
from appliance.program.slots import Extent, Slot, Span


def compile_decoder(spec: DecoderSpec, layouts: Mapping[str, Hashable]) -> CompiledDecoder:
    """Compiles a spec. layouts: the layout of each logical matrix (see ProgramBuilder). Raises ValueError if the spec
    has no layers."""
    if not spec.layers:
        raise ValueError("a decoder needs at least one layer")
    builder = ProgramBuilder(layouts)
    hidden, branch = _emit_embedding(builder, spec), None
    for layer in range(len(spec.layers)):
        hidden, branch = _emit_layer(builder, spec, layer, hidden, branch)
    return builder.finish(_emit_head(builder, spec, hidden, branch))


def _emit_embedding(builder: ProgramBuilder, spec: DecoderSpec) -> Slot:
    hidden = builder.slot("hidden", spec.hidden_size)
    table = builder.weight("embed", spec.vocab_size, spec.hidden_size, role="embedding")
    positions = builder.weight("positions", -1, spec.hidden_size) if spec.learned_positions else None
    builder.emit(Embed(table, hidden, spec.embedding_scale, positions, spec.position_offset))
    return hidden


def _emit_layer(
    builder: ProgramBuilder, spec: DecoderSpec, layer: int, hidden: Slot, branch: Slot | None
) -> tuple[Slot, Slot]:
    """Emits a layer; returns the residual stream [T, D] and the output [T, D] that is still to be added to it."""
    block, prefix = spec.layers[layer], f"layers.{layer}"
    normed = _normed(builder, spec, f"{prefix}.attention_norm", hidden, branch)
    mixed = emit_attention(builder, block.attention, layer, normed)
    if layer == len(spec.layers) - 1:
        hidden, mixed = _gather(builder, "hidden", hidden), _gather(builder, "attention", mixed)
    branch = builder.slot("branch", spec.hidden_size, hidden.extent)
    builder.project(mixed, [Projection(f"{prefix}.o", spec.hidden_size, block.attention.out_bias)], branch)
    if block.post_attention_norm:
        branch = _post_normed(builder, spec, f"{prefix}.post_attention_norm", branch)
    normed = _normed(builder, spec, f"{prefix}.feed_forward_norm", hidden, branch)
    branch = builder.slot("branch", spec.hidden_size, hidden.extent)
    if isinstance(block.feed_forward, ExpertsSpec):
        emit_experts(builder, block.feed_forward, prefix, normed, branch)
    else:
        emit_feed_forward(builder, block.feed_forward, prefix, normed, branch)
    if block.post_feed_forward_norm:
        branch = _post_normed(builder, spec, f"{prefix}.post_feed_forward_norm", branch)
    return hidden, branch


def _emit_head(builder: ProgramBuilder, spec: DecoderSpec, hidden: Slot, branch: Slot | None) -> Slot:
    """Emits the head; returns the logits [R, V] of the sampled rows."""
    normed = _normed(builder, spec, "norm", hidden, branch)
    logits = builder.slot("logits", spec.vocab_size, Extent.SAMPLED)
    if spec.tie_embeddings:
        builder.emit(Linear(Span(normed, 0, normed.width), "embed", Span(logits, 0, logits.width)))
    else:
        builder.project(normed, [Projection("head", spec.vocab_size, role="embedding")], logits)
    if spec.logit_soft_cap is not None:
        builder.emit(SoftCap(logits, spec.logit_soft_cap))
    return logits


def _normed(builder: ProgramBuilder, spec: DecoderSpec, name: str, hidden: Slot, branch: Slot | None) -> Slot:
    out = builder.slot("normed", spec.hidden_size, hidden.extent)
    if branch is None:
        return emit_norm(builder, spec.norm, name, hidden, out)
    return emit_norm(builder, spec.norm, name, branch, out, residual=hidden)


def _post_normed(builder: ProgramBuilder, spec: DecoderSpec, name: str, branch: Slot) -> Slot:
    return emit_norm(builder, spec.norm, name, branch, builder.slot("post_normed", spec.hidden_size, branch.extent))


def _gather(builder: ProgramBuilder, role: str, x: Slot) -> Slot:
    out = builder.slot(role, x.width, Extent.SAMPLED)
    builder.emit(GatherRows(x, out))
    return out
