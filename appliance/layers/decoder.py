"""The one decoder: compiles a DecoderSpec into a StepProgram.

The residual stream is the slot `hidden`. The output of a block waits in `branch` and is added by the next norm, which
reads the sum, so an addition costs no pass of its own where a norm follows. After the attention of the last layer, only
the rows whose logits are needed are computed: a prefill chunk that samples nothing skips the last feed-forward and the
head.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from appliance.layers.experts import emit_experts
from appliance.layers.feed_forward import emit_feed_forward
from appliance.layers.mixers import Mixed, emit_mixer
from appliance.layers.norms import emit_norm
from appliance.layers.per_layer import emit_inputs, emit_layer_input
from appliance.layers.pooling import emit_pooling
from appliance.layers.program import CompiledDecoder, ProgramBuilder, Projection
from appliance.layers.scale import emit_scale
from appliance.layers.shared import emit_kept_embeddings, emit_shared_block
from appliance.layers.spec import DecoderSpec, ExpertsSpec, FeedForward, LayerSpec, Mixer, SharedBlockSpec
from appliance.layers.stream_spec import PerLayerSpec, StreamsSpec
from appliance.layers.streams import (
    emit_correction,
    emit_laurel,
    emit_mean,
    emit_prediction,
    emit_scaled,
    emit_streams,
)
from appliance.program.operators import Add, Embed, GatherRows, Linear, ScaleByWeight, SoftCap
from appliance.program.slots import Extent, Slot, Span, whole


class _Stream(NamedTuple):
    """The residual stream, and what is still to be added to it: `scale` times `branch`. streams: between layers of a
    decoder that has several, all streams, of which `hidden` is the first."""

    hidden: Slot
    branch: Slot | None = None
    scale: float = 1.0
    streams: tuple[Slot, ...] = ()


def compile_decoder(spec: DecoderSpec, layouts: Mapping[str, Hashable]) -> CompiledDecoder:
    """Compiles a spec. layouts: the layout of each logical matrix (see ProgramBuilder). Raises ValueError if the spec
    has no layers."""
    if not spec.layers:
        raise ValueError("a decoder needs at least one layer")
    builder = ProgramBuilder(layouts)
    stream = _Stream(_emit_embedding(builder, spec))
    inputs = None
    if spec.per_layer is not None:
        inputs = emit_inputs(builder, spec.per_layer, len(spec.layers), stream.hidden)
    if spec.streams is not None:
        stream = _Stream(stream.hidden, streams=emit_streams(builder, spec.streams, stream.hidden))
    if any(layer.shared is not None for layer in spec.layers):
        emit_kept_embeddings(builder, stream.hidden)
    for layer in range(len(spec.layers)):
        stream = _LayerCompiler(builder, spec, layer, inputs).emit(stream)
    if spec.streams is not None:
        stream = _Stream(emit_mean(builder, stream.streams))
    emit_last = _emit_head if spec.pooling is None else _emit_pooled
    return builder.finish(emit_last(builder, spec, stream))


def _emit_embedding(builder: ProgramBuilder, spec: DecoderSpec) -> Slot:
    hidden = builder.slot("hidden", spec.hidden_size)
    out = hidden if spec.embedding_norm is None else builder.slot("embedded", spec.hidden_size)
    table = builder.weight("embed", spec.vocab_size, spec.hidden_size, role="embedding")
    positions = builder.weight("positions", -1, spec.hidden_size) if spec.learned_positions else None
    types = builder.weight("types", -1, spec.hidden_size) if spec.has_token_types else None
    builder.emit(Embed(table, out, spec.embedding_scale, positions, spec.position_offset, types))
    if spec.embedding_norm is not None:
        emit_norm(builder, spec.embedding_norm, "embed_norm", out, hidden)
    return hidden


class _LayerCompiler(NamedTuple):
    """Emits one layer."""

    builder: ProgramBuilder
    decoder: DecoderSpec
    layer: int
    inputs: Slot | None  # of all layers, where they have some beside the stream

    @property
    def spec(self) -> LayerSpec:
        return self.decoder.layers[self.layer]

    def emit(self, stream: _Stream) -> _Stream:
        """Emits the layer; returns the stream after it."""
        if self.decoder.streams is not None:
            return self._emit_streams(self.decoder.streams, stream.streams)
        stream = self._emit_blocks(stream)
        if self.inputs is not None and self.decoder.per_layer is not None:
            stream = self._summed(stream)
            stream = stream._replace(branch=self._layer_input(self.decoder.per_layer, stream.hidden))
        if self.spec.residual.scaled:
            stream = self._summed(stream)
            factor = self.builder.weight(self._name("residual_scale"), 1)
            self.builder.emit(ScaleByWeight(stream.hidden, factor, stream.hidden, is_one=True))
        return stream

    def _emit_streams(self, spec: StreamsSpec, streams: tuple[Slot, ...]) -> _Stream:
        """Emits a layer of a decoder with several streams. What its blocks make of the first has a slot of its own."""
        emit_prediction(self.builder, spec, self.layer, streams)
        target = self._summed(self._emit_blocks(_Stream(streams[0]))).hidden
        if self._is_gathered:
            streams = tuple(self._gather(f"stream{index}", stream) for index, stream in enumerate(streams))
        emit_correction(self.builder, spec, self.layer, streams, target)
        if self.decoder.per_layer is not None:
            scaled = emit_scaled(self.builder, spec, self.layer, streams[0])
            added = self._layer_input(self.decoder.per_layer, scaled)
            self.builder.emit(*(Add(added, stream) for stream in streams[1:]))
        return _Stream(streams[0], streams=streams)

    def _layer_input(self, spec: PerLayerSpec, x: Slot) -> Slot:
        assert self.inputs is not None, "a decoder with inputs of its layers computes them first"
        inputs = self._gather("per_layer", self.inputs) if x.extent is Extent.SAMPLED else self.inputs
        return emit_layer_input(self.builder, spec, self.layer, x, inputs)

    def _emit_blocks(self, stream: _Stream) -> _Stream:
        mixer, feed_forward = self.spec.mixer, self.spec.feed_forward
        if self.spec.residual.parallel and mixer is not None and feed_forward is not None:
            return self._emit_parallel(stream, mixer, feed_forward)
        if mixer is not None:
            stream = self._emit_mixer(stream, mixer)
        return stream if feed_forward is None else self._emit_feed_forward(stream, feed_forward)

    def _emit_mixer(self, stream: _Stream, mixer: Mixer) -> _Stream:
        if self.spec.shared is None:
            stream, normed = self._normed("attention_norm", stream)
        else:
            stream, normed = self._after_shared_block(stream, self.spec.shared)
        mixed = emit_mixer(self.builder, mixer, self.layer, normed)
        streams = self.decoder.streams
        if streams is not None:
            stream = _Stream(emit_laurel(self.builder, streams, self.layer, stream.hidden, normed))
        if self._is_gathered:
            stream, mixed = self._gathered(stream), self._gathered_mixed(mixed)
        stream = self._with_branch(stream, self._mixer_output(mixed), "post_attention_norm")
        if streams is not None:
            stream = self._summed(stream)
            emit_scale(self.builder, whole(stream.hidden), 0.5**0.5)
        return stream

    def _emit_feed_forward(self, stream: _Stream, spec: FeedForward) -> _Stream:
        stream, normed = self._normed("feed_forward_norm", stream)
        if self._is_gathered and self.spec.mixer is None:
            stream, normed = self._gathered(stream), self._gather("normed", normed)
        return self._with_branch(stream, self._feed_forward(spec, normed, stream.hidden), "post_feed_forward_norm")

    def _emit_parallel(self, stream: _Stream, mixer: Mixer, feed_forward: FeedForward) -> _Stream:
        stream, normed = self._normed("attention_norm", stream)
        mixed = emit_mixer(self.builder, mixer, self.layer, normed)
        if self._is_gathered:
            stream, mixed = self._gathered(stream), self._gathered_mixed(mixed)
            normed = self._gather("normed", normed) if self.spec.residual.one_norm else normed
        if not self.spec.residual.one_norm:
            out = self.builder.slot("normed", self.decoder.hidden_size, stream.hidden.extent)
            normed = emit_norm(self.builder, self.decoder.norm, self._name("feed_forward_norm"), stream.hidden, out)
        fed = self._feed_forward(feed_forward, normed, stream.hidden)
        branch = self._mixer_output(mixed, role="mixer_output")
        self.builder.emit(Add(fed, branch))
        return self._with_branch(stream, branch, "")

    @property
    def _is_gathered(self) -> bool:
        """Returns whether only some rows are needed from here on: in the last layer, except for a mean of all."""
        is_mean = self.decoder.pooling is not None and self.decoder.pooling.kind == "mean"
        return self.layer == len(self.decoder.layers) - 1 and not is_mean

    def _name(self, part: str) -> str:
        return f"layers.{self.layer}.{part}"

    def _normed(self, name: str, stream: _Stream) -> tuple[_Stream, Slot]:
        """Returns what a block reads: a norm of the sum, or the sum itself if no norm stands before the block."""
        residual = self.spec.residual
        if residual.norms in ("output", "post") or (residual.bare_mixer and name == "attention_norm"):
            stream = self._summed(stream)
            return stream, stream.hidden
        normed = _emit_stream_norm(self.builder, self.decoder, self._name(name), stream)
        return _Stream(stream.hidden), normed

    def _after_shared_block(self, stream: _Stream, spec: SharedBlockSpec) -> tuple[_Stream, Slot]:
        """Emits a block that layers share; returns the norm of its output's sum with the stream, and the stream."""
        stream, norm = self._summed(stream), self.decoder.norm
        total = emit_shared_block(self.builder, spec, norm, self.layer, stream.hidden)
        out = self.builder.slot("normed", self.decoder.hidden_size)
        return stream, emit_norm(self.builder, norm, self._name("attention_norm"), total, out)

    def _summed(self, stream: _Stream) -> _Stream:
        """Adds what waits, which only a layer of another kind leaves before one that reads the sum."""
        if stream.branch is not None:
            emit_scale(self.builder, whole(stream.branch), stream.scale)
            self.builder.emit(Add(stream.branch, stream.hidden))
        return _Stream(stream.hidden)

    def _mixer_output(self, mixed: Sequence[Mixed], role: str = "branch") -> Slot:
        """Emits the sum of the output projections."""
        out = self.builder.slot(role, self.decoder.hidden_size, mixed[0].out.extent)
        for index, each in enumerate(mixed):
            emit_scale(self.builder, whole(each.out), each.scale)
            part = Projection(each.weight, self.decoder.hidden_size, each.bias)
            self.builder.project(each.out, [part], out, accumulate=index > 0)
        return out

    def _feed_forward(self, spec: FeedForward, normed: Slot, hidden: Slot) -> Slot:
        out = self.builder.slot("branch", self.decoder.hidden_size, normed.extent)
        prefix = f"layers.{self.layer}"
        if isinstance(spec, ExpertsSpec):
            emit_experts(self.builder, spec, prefix, normed, out, hidden)
        else:
            emit_feed_forward(self.builder, spec, prefix, normed, out)
        return out

    def _with_branch(self, stream: _Stream, branch: Slot, norm_name: str) -> _Stream:
        """Returns the stream with the output of a block to add, which is normed first if the layer says so."""
        residual = self.spec.residual
        if residual.norms == "post":
            return _Stream(self._normed_sum(stream.hidden, branch, self._name(norm_name)))
        if residual.norms != "pre":
            out = self.builder.slot("post_normed", self.decoder.hidden_size, branch.extent)
            branch = emit_norm(self.builder, self.decoder.norm, self._name(norm_name), branch, out)
        if residual.norms == "output":
            self.builder.emit(Add(branch, stream.hidden))
            return stream
        return _Stream(stream.hidden, branch, residual.multiplier)

    def _normed_sum(self, hidden: Slot, branch: Slot, name: str) -> Slot:
        """Returns the norm of hidden + branch. Two slots take turns, as the norm does not write where the sum is."""
        slots = [self.builder.slot(role, hidden.width, hidden.extent) for role in ("hidden", "normed")]
        out = slots[1] if hidden == slots[0] else slots[0]
        return emit_norm(self.builder, self.decoder.norm, name, branch, out, hidden)

    def _gathered(self, stream: _Stream) -> _Stream:
        role = "hidden" if self.decoder.streams is None else "activated"
        return _Stream(self._gather(role, stream.hidden), stream.branch, stream.scale)

    def _gathered_mixed(self, mixed: Sequence[Mixed]) -> list[Mixed]:
        return [each._replace(out=self._gather(f"mixed{index}", each.out)) for index, each in enumerate(mixed)]

    def _gather(self, role: str, x: Slot) -> Slot:
        out = self.builder.slot(role, x.width, Extent.SAMPLED)
        self.builder.emit(GatherRows(x, out))
        return out


def _emit_stream_norm(builder: ProgramBuilder, spec: DecoderSpec, name: str, stream: _Stream) -> Slot:
    """Emits the addition of the waiting output, and the norm of the sum; returns the norm."""
    out = builder.slot("normed", spec.hidden_size, stream.hidden.extent)
    if stream.branch is None:
        return emit_norm(builder, spec.norm, name, stream.hidden, out)
    return emit_norm(builder, spec.norm, name, stream.branch, out, stream.hidden, stream.scale)


def _emit_pooled(builder: ProgramBuilder, spec: DecoderSpec, stream: _Stream) -> Slot:
    """Emits the pooling head; returns its result [R, W], W numbers of each pooled row."""
    assert spec.pooling is not None, "a head of logits is emitted by _emit_head"
    rows = _emit_stream_norm(builder, spec, "norm", stream) if spec.has_final_norm else stream.hidden
    return emit_pooling(builder, spec.pooling, rows)


def _emit_head(builder: ProgramBuilder, spec: DecoderSpec, stream: _Stream) -> Slot:
    """Emits the head; returns the logits [R, V] of the sampled rows."""
    normed = _emit_stream_norm(builder, spec, "norm", stream)
    logits = builder.slot("logits", spec.vocab_size, Extent.SAMPLED)
    if spec.tie_embeddings:
        builder.emit(Linear(Span(normed, 0, normed.width), "embed", Span(logits, 0, logits.width)))
    else:
        builder.project(normed, [Projection("head", spec.vocab_size, spec.head_bias, role="embedding")], logits)
    if spec.logit_soft_cap is not None:
        builder.emit(SoftCap(logits, spec.logit_soft_cap))
    return logits
