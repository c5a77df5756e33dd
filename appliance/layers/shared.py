"""A block that layers share, which reads the residual stream beside the embeddings."""

from appliance.layers.adapter import Adapter
from appliance.layers.attention import BlockWeights, emit_attention
from appliance.layers.feed_forward import emit_feed_forward
from appliance.layers.norm_spec import NormSpec
from appliance.layers.norms import emit_norm
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import SharedBlockSpec
from appliance.program.operators import Add, Copy
from appliance.program.slots import Slot, Span, whole


def emit_kept_embeddings(builder: ProgramBuilder, hidden: Slot) -> None:
    """Emits a copy of the embeddings [T, D], which shared blocks read."""
    builder.emit(Copy(whole(hidden), Span(_beside(builder, hidden), hidden.width, hidden.width)))


def emit_shared_block(builder: ProgramBuilder, spec: SharedBlockSpec, norm: NormSpec, layer: int, hidden: Slot) -> Slot:
    """Emits hidden + shared_out(block(hidden, embeddings)) into a slot [T, D], which it returns; `hidden` is kept."""
    block, own, width = f"shared.{spec.number}", f"layers.{layer}", hidden.width
    adapter, beside = Adapter(own, spec.adapter_rank), _beside(builder, hidden)
    builder.emit(Copy(whole(hidden), Span(beside, 0, width)))
    normed = emit_norm(builder, norm, f"{block}.attention_norm", beside, builder.slot("normed", beside.width))
    adapted = adapter if spec.adapts_attention else None
    attended = emit_attention(builder, spec.attention, layer, normed, BlockWeights(block, adapted))
    mixed = builder.slot("branch", width)
    builder.project(attended, [Projection(f"{block}.o", width, spec.attention.out_bias)], mixed)
    normed = emit_norm(builder, norm, f"{block}.feed_forward_norm", mixed, builder.slot("normed", width))
    fed = builder.slot("branch", width)
    emit_feed_forward(builder, spec.feed_forward, block, normed, fed, adapter)
    total = builder.slot("shared_out", width)
    builder.project(fed, [Projection(f"{own}.shared_out", width)], total)
    builder.emit(Add(hidden, total))
    return total


def _beside(builder: ProgramBuilder, hidden: Slot) -> Slot:
    """Returns the slot of the residual stream beside the embeddings, in which the latter stay for the whole step."""
    return builder.slot("beside", 2 * hidden.width)
