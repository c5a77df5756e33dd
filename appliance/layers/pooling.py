"""The head of models that pool: rows of a sequence, and linear maps of them."""

from appliance.layers.norms import emit_norm
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import HeadMap, PoolingHead
from appliance.program.operators import MeanRows, SoftCap
from appliance.program.slots import Extent, Slot

_TANH_CAP = 1.0  # cap * tanh(x / cap) is then tanh(x)


def emit_pooling(builder: ProgramBuilder, head: PoolingHead, rows: Slot) -> Slot:
    """Emits the head over rows: those of all tokens [T, D] for a mean, else those that are pooled [R, D]. Returns
    [R, width of the last map], or [R, D] without maps."""
    if head.kind == "mean":
        pooled = builder.slot("pooled", rows.width, Extent.SAMPLED)
        builder.emit(MeanRows(rows, pooled))
        rows = pooled
    for number, each in enumerate(head.maps):
        rows = _emit_map(builder, each, rows, f"mapped.{number}")
    return rows


def _emit_map(builder: ProgramBuilder, each: HeadMap, rows: Slot, role: str) -> Slot:
    out = builder.slot(role, each.out_features, Extent.SAMPLED)
    size = each.out_features // len(each.weights)
    parts = [Projection(name, size, each.bias, role="other") for name in each.weights]
    builder.project(rows, parts, out, None if each.activation == "tanh" else each.activation)
    if each.activation == "tanh":
        builder.emit(SoftCap(out, _TANH_CAP))
    if each.norm is None:
        return out
    normed = builder.slot(f"{role}.normed", each.out_features, Extent.SAMPLED)
    return emit_norm(builder, each.norm, f"{each.weights[0]}.norm", out, normed)
