"""Emits a stage of Medusa's heads or of an MLP speculator, which reads a state and keeps no cache."""

from math import sqrt

from appliance.layers.draft_spec import MedusaHeadSpec, MlpSpeculatorSpec, StageSpec
from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.spec import DecoderSpec
from appliance.program.operators import Activation, Add, Copy, Embed, HeadNorm, RmsNorm, Scale
from appliance.program.slots import Slot, Span, whole


def emit_stage(builder: ProgramBuilder, spec: DecoderSpec, stage: StageSpec) -> tuple[Slot, Slot]:
    """Emits what a stage makes of the states that it is given; returns the given slot, and the state that it makes."""
    if isinstance(stage, MedusaHeadSpec):
        return _emit_medusa(builder, spec.hidden_size, stage)
    return _emit_speculator(builder, spec, stage)


def _emit_medusa(builder: ProgramBuilder, width: int, stage: MedusaHeadSpec) -> tuple[Slot, Slot]:
    given, hidden, branch = (builder.slot(role, width) for role in ("given", "hidden", "branch"))
    builder.emit(Copy(whole(given), whole(hidden)))
    for block in range(stage.num_blocks):
        builder.project(hidden, [Projection(f"blocks.{block}", width, stage.has_bias)], branch, "silu")
        builder.emit(Add(branch, hidden))
    return given, hidden


def _emit_speculator(builder: ProgramBuilder, spec: DecoderSpec, stage: MlpSpeculatorSpec) -> tuple[Slot, Slot]:
    inner = spec.hidden_size
    given, hidden = builder.slot("given", sum(stage.widths)), builder.slot("hidden", inner)
    table = builder.weight("embed", spec.vocab_size, inner, role="embedding")
    builder.emit(Embed(table, hidden, stage.embedding_scale, num_tokens=spec.vocab_size))
    start = 0
    for number, width in enumerate(stage.widths):
        read = Span(given, start, width)
        if stage.norms_given and number == 0:
            read = whole(_emit_normed(builder, read, stage.eps))
        builder.project(read, [Projection(f"projections.{number}", inner)], hidden, accumulate=True)
        start += width
    weight, bias = builder.weight("norm", inner), builder.weight("norm.bias", inner)
    builder.emit(HeadNorm(whole(hidden), weight, 1, inner, stage.eps, bias=bias))
    state = builder.slot("state", inner)
    builder.emit(Activation(hidden, state, "gelu"))
    return given, state


def _emit_normed(builder: ProgramBuilder, given: Span, eps: float) -> Slot:
    model, normed = builder.slot("model", given.width), builder.slot("normed", given.width)
    builder.emit(Copy(given, whole(model)), RmsNorm(model, None, normed, eps), Scale(whole(normed), 1.0 / sqrt(2.0)))
    return normed
