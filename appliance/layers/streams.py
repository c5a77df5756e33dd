"""Several residual streams (AltUp), and the LAuReL blocks beside the mixers of their layers.

Streams are slots of their own, so that all that works on a residual stream works on each.
"""

from collections.abc import Sequence

from appliance.layers.program import ProgramBuilder, Projection
from appliance.layers.stream_spec import StreamsSpec
from appliance.program.operators import Add, RmsNorm, Scale, ScaleByWeight, SoftCap
from appliance.program.slots import Slot, whole
from appliance.program.streams import CorrectStreams, MatchMagnitude, MixStreams

LEAST_SQUARE = 1e-5  # of a stream whose magnitude is changed, as in transformers' Gemma 3n


def emit_streams(builder: ProgramBuilder, spec: StreamsSpec, first: Slot) -> tuple[Slot, ...]:
    """Emits the other streams from the first, the embedding [T, D]; returns all."""
    others = tuple(builder.slot(f"stream{index}", first.width) for index in range(1, spec.num_streams))
    for index, stream in enumerate(others, 1):
        _emit_map(builder, f"streams.begin.{index}", first, first, stream)
    return first, *others


def emit_mean(builder: ProgramBuilder, streams: Sequence[Slot]) -> Slot:
    """Emits the mean of the first stream and the maps of the others; returns its slot."""
    first, *others = streams
    mean, part = (builder.slot(role, first.width, first.extent) for role in ("activated", "branch"))
    _emit_map(builder, "streams.end.1", others[0], first, mean)
    for index, stream in enumerate(others[1:], 2):
        _emit_map(builder, f"streams.end.{index}", stream, first, part)
        builder.emit(Add(part, mean))
    builder.emit(Add(first, mean), Scale(whole(mean), 1 / len(streams)))
    return mean


def emit_prediction(builder: ProgramBuilder, spec: StreamsSpec, layer: int, streams: tuple[Slot, ...]) -> None:
    """Emits the mixing of the streams before a layer."""
    coefficients = _emit_coefficients(builder, spec, layer, streams[0], "predict", spec.num_streams**2)
    builder.emit(MixStreams(streams, coefficients))


def emit_correction(
    builder: ProgramBuilder, spec: StreamsSpec, layer: int, streams: tuple[Slot, ...], target: Slot
) -> None:
    """Emits the correction of the streams by what a layer made of the first, `target`."""
    coefficients = _emit_coefficients(builder, spec, layer, target, "correct", spec.num_streams)
    builder.emit(CorrectStreams(streams, target, coefficients))


def emit_laurel(builder: ProgramBuilder, spec: StreamsSpec, layer: int, hidden: Slot, normed: Slot) -> Slot:
    """Emits hidden + normed + norm(high(low(normed))) into a slot of its own, which it returns."""
    prefix, width = f"layers.{layer}.laurel", normed.width
    low = builder.slot("laurel_low", spec.laurel_rank)
    high, out = builder.slot("branch", width), builder.slot("activated", width)
    builder.project(normed, [Projection(f"{prefix}.low", spec.laurel_rank)], low)
    builder.project(low, [Projection(f"{prefix}.high", width)], high)
    builder.emit(RmsNorm(high, builder.weight(f"{prefix}.norm", width), out, spec.norm_eps))
    builder.emit(Add(normed, out), Add(hidden, out))
    return out


def emit_scaled(builder: ProgramBuilder, spec: StreamsSpec, layer: int, first: Slot) -> Slot:
    """Emits the first stream times a factor of each column; returns where it is."""
    if not spec.is_scaled:
        return first
    out = builder.slot("normed", first.width, first.extent)
    builder.emit(ScaleByWeight(first, builder.weight(f"layers.{layer}.streams.scale", first.width), out))
    return out


def _emit_map(builder: ProgramBuilder, weight: str, x: Slot, reference: Slot, out: Slot) -> None:
    builder.project(x, [Projection(weight, x.width)], out)
    builder.emit(MatchMagnitude(out, reference, LEAST_SQUARE))


def _emit_coefficients(builder: ProgramBuilder, spec: StreamsSpec, layer: int, x: Slot, name: str, count: int) -> Slot:
    """Emits the coefficients of x [rows, D] as `count` numbers a row. Their matrices are small, and always f32."""
    prefix, number = f"layers.{layer}.streams", spec.num_streams
    normed = builder.slot("normed", x.width, x.extent)
    builder.emit(RmsNorm(x, builder.weight(f"{prefix}.router_norm", x.width), normed, spec.norm_eps))
    routed = builder.slot("stream_router", number, x.extent)
    builder.project(normed, [Projection(f"{prefix}.router", number, role="other")], routed)
    builder.emit(SoftCap(routed, 1.0))  # which is tanh
    out = builder.slot("stream_coefficients", count, x.extent)
    builder.project(routed, [Projection(f"{prefix}.{name}", count, role="other")], out)
    return out
