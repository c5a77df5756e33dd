"""Inputs of each layer beside the residual stream: per-layer embeddings."""

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.stream_spec import PerLayerSpec
from appliance.program.operators import Add, Embed, GatedActivation, HeadNorm, RmsNorm
from appliance.program.slots import Slot, Span, whole


def emit_inputs(builder: ProgramBuilder, spec: PerLayerSpec, num_layers: int, embedding: Slot) -> Slot:
    """Emits the inputs of all layers from the token embeddings [T, D]; returns a slot [T, layers * width].

    The input scale goes into the norm's epsilon, as norm(s * x, eps) is norm(x, eps / s^2), and the scale of the sum
    into both summands: the norm's weight has it in the weight map, as a WeightSource's scale.
    """
    columns = num_layers * spec.width
    inputs = builder.slot("per_layer", columns)
    table = builder.weight("per_layer.embed", spec.num_rows, columns, role="embedding")
    scale = spec.table_scale * spec.sum_scale
    builder.emit(Embed(table, inputs, scale, missing_row=0, num_tokens=spec.num_rows))
    context = builder.slot("per_layer_context", columns)
    builder.project(embedding, [Projection("per_layer.project", columns)], context)
    weight, eps = builder.weight("per_layer.norm", spec.width), spec.norm_eps / spec.input_scale**2
    builder.emit(HeadNorm(whole(context), weight, num_layers, spec.width, eps), Add(context, inputs))
    return inputs


def emit_layer_input(builder: ProgramBuilder, spec: PerLayerSpec, layer: int, x: Slot, inputs: Slot) -> Slot:
    """Emits what a layer's input adds to its stream x [rows, D]; returns that, normed."""
    prefix, hidden_size = f"layers.{layer}.per_layer", x.width
    gate, inner = (builder.slot(role, spec.width, x.extent) for role in ("per_layer_gate", "per_layer_inner"))
    builder.project(x, [Projection(f"{prefix}.gate", spec.width)], gate)
    own = Span(inputs, layer * spec.width, spec.width)
    builder.emit(GatedActivation(whole(gate), own, inner, spec.activation))
    out, normed = builder.slot("branch", hidden_size, x.extent), builder.slot("post_normed", hidden_size, x.extent)
    builder.project(inner, [Projection(f"{prefix}.out", hidden_size)], out)
    builder.emit(RmsNorm(out, builder.weight(f"{prefix}.post_norm", hidden_size), normed, spec.norm_eps))
    return normed
