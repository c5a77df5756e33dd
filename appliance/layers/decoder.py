"""The one decoder: compiles a DecoderSpec into a StepProgram.

The residual stream is the slot `hidden`. The output of a block waits in `branch` and is added by the next norm, which
reads the sum, so an addition costs no pass of its own where a norm follows. After the attention of the last layer, only
the rows whose logits are needed are computed: a prefill chunk that samples nothing skips the last feed-forward and the
head.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from appliance.layers.draft_spec import DraftHeadSpec, KeptStates, MedusaHeadSpec, StageSpec
from appliance.layers.draft_stages import emit_stage
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
from appliance.program.operators import Add, Copy, Embed, GatherRows, Linear, Scale, ScaleByWeight, SoftCap
from appliance.program.slots import Extent, Slot, Span, whole


class Stream(NamedTuple):
    """The residual stream, and what is still to be added to it: `scale` times `branch`. streams: between layers of a
    decoder that has several, all streams, of which `hidden` is the first."""

    hidden: Slot
    branch: Slot | None = None
    scale: float = 1.0
    streams: tuple[Slot, ...] = ()


def compile_decoder(spec: DecoderSpec, layouts: Mapping[str, Hashable]) -> CompiledDecoder:
    """Compiles a spec. layouts: the layout of each logical matrix (see ProgramBuilder). Raises ValueError if the spec
    has no layers."""
    builder = ProgramBuilder(layouts)
    if isinstance(spec.draft, StageSpec):
        return _compile_stage(builder, spec, spec.draft)
    if not spec.layers:
        raise ValueError("a decoder needs at least one layer")
    if spec.draft is not None:
        return _compile_draft_head(builder, spec, spec.draft)
    stream = Stream(emit_embedding(builder, spec))
    inputs = None
    if spec.per_layer is not None:
        inputs = emit_inputs(builder, spec.per_layer, len(spec.layers), stream.hidden)
    if spec.streams is not None:
        stream = Stream(stream.hidden, streams=emit_streams(builder, spec.streams, stream.hidden))
    if any(layer.shared is not None for layer in spec.layers):
        emit_kept_embeddings(builder, stream.hidden)
    kept = None
    for layer in range(len(spec.layers)):
        compiler = LayerCompiler(builder, spec, layer, inputs)
        if spec.keeps is not None and layer in spec.keeps.layers:
            stream, kept = compiler.kept(stream, spec.keeps)
        stream = compiler.emit(stream)
    if spec.streams is not None:
        stream = Stream(emit_mean(builder, stream.streams))
    if spec.pooling is not None:
        return builder.finish(_emit_pooled(builder, spec, stream))
    normed = emit_stream_norm(builder, spec, "norm", stream)
    if spec.keeps is not None and not spec.keeps.layers:
        kept, normed = normed, _gather(builder, "last", normed)
    return builder.finish(emit_logits(builder, spec, normed), kept)


def emit_embedding(builder: ProgramBuilder, spec: DecoderSpec) -> Slot:
    hidden = builder.slot("hidden", spec.hidden_size)
    out = hidden if spec.embedding_norm is None else builder.slot("embedded", spec.hidden_size)
    table = builder.weight("embed", spec.vocab_size, spec.hidden_size, role="embedding")
    positions = builder.weight("positions", -1, spec.hidden_size) if spec.learned_positions else None
    types = builder.weight("types", -1, spec.hidden_size) if spec.has_token_types else None
    places = (positions, spec.position_offset, types)
    scale, given_scale = spec.embedding_scale, spec.given_scale
    builder.emit(Embed(table, out, scale, *places, num_tokens=spec.vocab_size, given_scale=given_scale))
    if spec.embedding_norm is not None:
        emit_norm(builder, spec.embedding_norm, "embed_norm", out, hidden)
    return hidden


class LayerCompiler(NamedTuple):
    """Emits one layer."""

    builder: ProgramBuilder
    decoder: DecoderSpec
    layer: int
    inputs: Slot | None  # of all layers, where they have some beside the stream

    @property
    def spec(self) -> LayerSpec:
        return self.decoder.layers[self.layer]

    def emit(self, stream: Stream) -> Stream:
        """Emits the layer; returns the stream after it."""
        if self.decoder.streams is not None:
            return self._emit_streams(self.decoder.streams, stream.streams)
        stream = self._emit_blocks(stream)
        if self.inputs is not None and self.decoder.per_layer is not None:
            stream = self.summed(stream)
            stream = stream._replace(branch=self._layer_input(self.decoder.per_layer, stream.hidden))
        if self.spec.residual.scaled:
            stream = self.summed(stream)
            factor = self.builder.weight(self._name("residual_scale"), 1)
            self.builder.emit(ScaleByWeight(stream.hidden, factor, stream.hidden, is_one=True))
        return stream

    def _emit_streams(self, spec: StreamsSpec, streams: tuple[Slot, ...]) -> Stream:
        """Emits a layer of a decoder with several streams. What its blocks make of the first has a slot of its own."""
        emit_prediction(self.builder, spec, self.layer, streams)
        target = self.summed(self._emit_blocks(Stream(streams[0]))).hidden
        if self.is_gathered:
            streams = tuple(self._gather(f"stream{index}", stream) for index, stream in enumerate(streams))
        emit_correction(self.builder, spec, self.layer, streams, target)
        if self.decoder.per_layer is not None:
            scaled = emit_scaled(self.builder, spec, self.layer, streams[0])
            added = self._layer_input(self.decoder.per_layer, scaled)
            self.builder.emit(*(Add(added, stream) for stream in streams[1:]))
        return Stream(streams[0], streams=streams)

    def _layer_input(self, spec: PerLayerSpec, x: Slot) -> Slot:
        assert self.inputs is not None, "a decoder with inputs of its layers computes them first"
        inputs = self._gather("per_layer", self.inputs) if x.extent is Extent.SAMPLED else self.inputs
        return emit_layer_input(self.builder, spec, self.layer, x, inputs)

    def _emit_blocks(self, stream: Stream) -> Stream:
        mixer, feed_forward = self.spec.mixer, self.spec.feed_forward
        if self.spec.residual.parallel and mixer is not None and feed_forward is not None:
            return self._emit_parallel(stream, mixer, feed_forward)
        if mixer is not None:
            stream = self._emit_mixer(stream, mixer)
        return stream if feed_forward is None else self.emit_fed(stream, feed_forward)

    def _emit_mixer(self, stream: Stream, mixer: Mixer) -> Stream:
        if self.spec.shared is None:
            stream, normed = self._normed("attention_norm", stream)
        else:
            stream, normed = self._after_shared_block(stream, self.spec.shared)
        mixed = emit_mixer(self.builder, mixer, self.layer, normed)
        streams = self.decoder.streams
        if streams is not None:
            stream = Stream(emit_laurel(self.builder, streams, self.layer, stream.hidden, normed))
        if self.is_gathered:
            stream, mixed = self.gathered(stream), self.gathered_mixed(mixed)
        stream = self.with_branch(stream, self.mixer_output(mixed), "post_attention_norm")
        if streams is not None:
            stream = self.summed(stream)
            emit_scale(self.builder, whole(stream.hidden), 0.5**0.5)
        return stream

    def emit_after(self, stream: Stream, read: Slot) -> Stream:
        """Emits the layer with a mixer that reads `read` in place of a norm of the stream."""
        mixer, feed_forward = self.spec.mixer, self.spec.feed_forward
        assert mixer is not None, "a layer of a head attends"
        assert feed_forward is not None, "a layer of a head has a feed-forward"
        mixed: Sequence[Mixed] = emit_mixer(self.builder, mixer, self.layer, read)
        if self.is_gathered:
            stream, mixed = self.gathered(stream), self.gathered_mixed(mixed)
        stream = self.with_branch(stream, self.mixer_output(mixed), "post_attention_norm")
        return self.emit_fed(stream, feed_forward)

    def emit_fed(self, stream: Stream, spec: FeedForward) -> Stream:
        stream, normed = self._normed("feed_forward_norm", stream)
        if self.is_gathered and self.spec.mixer is None:
            stream, normed = self.gathered(stream), self._gather("normed", normed)
        return self.with_branch(stream, self._feed_forward(spec, normed, stream.hidden), "post_feed_forward_norm")

    def _emit_parallel(self, stream: Stream, mixer: Mixer, feed_forward: FeedForward) -> Stream:
        stream, normed = self._normed("attention_norm", stream)
        mixed = emit_mixer(self.builder, mixer, self.layer, normed)
        if self.is_gathered:
            stream, mixed = self.gathered(stream), self.gathered_mixed(mixed)
            normed = self._gather("normed", normed) if self.spec.residual.one_norm else normed
        if not self.spec.residual.one_norm:
            out = self.builder.slot("normed", self.decoder.hidden_size, stream.hidden.extent)
            normed = emit_norm(self.builder, self.decoder.norm, self._name("feed_forward_norm"), stream.hidden, out)
        fed = self._feed_forward(feed_forward, normed, stream.hidden)
        branch = self.mixer_output(mixed, role="mixer_output")
        self.builder.emit(Add(fed, branch))
        return self.with_branch(stream, branch, "")

    @property
    def is_gathered(self) -> bool:
        """Returns whether only some rows are needed from here on: in the last layer, unless all are pooled, or kept."""
        pooling, keeps = self.decoder.pooling, self.decoder.keeps
        needs_all = (pooling is not None and pooling.kind == "mean") or (keeps is not None and not keeps.layers)
        return self.layer == len(self.decoder.layers) - 1 and not needs_all

    def kept(self, stream: Stream, keeps: KeptStates) -> tuple[Stream, Slot]:
        """Emits a copy of the stream before this layer into its columns of the kept slot."""
        stream, width = self.summed(stream), self.decoder.hidden_size
        kept = self.builder.slot("kept", width * len(keeps.layers))
        start = width * keeps.layers.index(self.layer)
        self.builder.emit(Copy(whole(stream.hidden), Span(kept, start, width)))
        return stream, kept

    def _name(self, part: str) -> str:
        return f"layers.{self.layer}.{part}"

    def _normed(self, name: str, stream: Stream) -> tuple[Stream, Slot]:
        """Returns what a block reads: a norm of the sum, or the sum itself if no norm stands before the block."""
        residual = self.spec.residual
        if residual.norms in ("output", "post") or (residual.bare_mixer and name == "attention_norm"):
            stream = self.summed(stream)
            return stream, stream.hidden
        normed = emit_stream_norm(self.builder, self.decoder, self._name(name), stream)
        return Stream(stream.hidden), normed

    def _after_shared_block(self, stream: Stream, spec: SharedBlockSpec) -> tuple[Stream, Slot]:
        """Emits a block that layers share; returns the norm of its output's sum with the stream, and the stream."""
        stream, norm = self.summed(stream), self.decoder.norm
        total = emit_shared_block(self.builder, spec, norm, self.layer, stream.hidden)
        out = self.builder.slot("normed", self.decoder.hidden_size)
        return stream, emit_norm(self.builder, norm, self._name("attention_norm"), total, out)

    def summed(self, stream: Stream) -> Stream:
        """Adds what waits, which only a layer of another kind leaves before one that reads the sum."""
        if stream.branch is not None:
            emit_scale(self.builder, whole(stream.branch), stream.scale)
            self.builder.emit(Add(stream.branch, stream.hidden))
        return Stream(stream.hidden)

    def mixer_output(self, mixed: Sequence[Mixed], role: str = "branch") -> Slot:
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

    def with_branch(self, stream: Stream, branch: Slot, norm_name: str) -> Stream:
        """Returns the stream with the output of a block to add, which is normed first if the layer says so."""
        residual = self.spec.residual
        if residual.norms == "post":
            return Stream(self._normed_sum(stream.hidden, branch, self._name(norm_name)))
        if residual.norms != "pre":
            out = self.builder.slot("post_normed", self.decoder.hidden_size, branch.extent)
            branch = emit_norm(self.builder, self.decoder.norm, self._name(norm_name), branch, out)
        if residual.norms == "output":
            self.builder.emit(Add(branch, stream.hidden))
            return stream
        return Stream(stream.hidden, branch, residual.multiplier)

    def _normed_sum(self, hidden: Slot, branch: Slot, name: str) -> Slot:
        """Returns the norm of hidden + branch. Two slots take turns, as the norm does not write where the sum is."""
        slots = [self.builder.slot(role, hidden.width, hidden.extent) for role in ("hidden", "normed")]
        out = slots[1] if hidden == slots[0] else slots[0]
        return emit_norm(self.builder, self.decoder.norm, name, branch, out, hidden)

    def gathered(self, stream: Stream) -> Stream:
        role = "hidden" if self.decoder.streams is None else "activated"
        return Stream(self._gather(role, stream.hidden), stream.branch, stream.scale)

    def gathered_mixed(self, mixed: Sequence[Mixed]) -> list[Mixed]:
        return [each._replace(out=self._gather(f"mixed{index}", each.out)) for index, each in enumerate(mixed)]

    def _gather(self, role: str, x: Slot) -> Slot:
        return _gather(self.builder, role, x)


def _gather(builder: ProgramBuilder, role: str, x: Slot) -> Slot:
    out = builder.slot(role, x.width, Extent.SAMPLED)
    builder.emit(GatherRows(x, out))
    return out


def emit_stream_norm(builder: ProgramBuilder, spec: DecoderSpec, name: str, stream: Stream) -> Slot:
    """Emits the addition of the waiting output, and the norm of the sum; returns the norm."""
    out = builder.slot("normed", spec.hidden_size, stream.hidden.extent)
    if stream.branch is None:
        return emit_norm(builder, spec.norm, name, stream.hidden, out)
    return emit_norm(builder, spec.norm, name, stream.branch, out, stream.hidden, stream.scale)


def _emit_pooled(builder: ProgramBuilder, spec: DecoderSpec, stream: Stream) -> Slot:
    """Emits the pooling head; returns its result [R, W], W numbers of each pooled row."""
    assert spec.pooling is not None, "a head of logits is emitted by _emit_head"
    rows = emit_stream_norm(builder, spec, "norm", stream) if spec.has_final_norm else stream.hidden
    return emit_pooling(builder, spec.pooling, rows)


def emit_logits(builder: ProgramBuilder, spec: DecoderSpec, normed: Slot, num_tokens: int | None = None) -> Slot:
    """Emits the output head; returns the logits [R, V] of the sampled rows. num_tokens: V, of a head that knows fewer
    tokens than the table."""
    size = num_tokens or spec.vocab_size
    logits = builder.slot("logits", size, Extent.SAMPLED)
    if spec.tie_embeddings:
        builder.emit(Linear(Span(normed, 0, normed.width), "embed", Span(logits, 0, logits.width)))
    else:
        builder.project(normed, [Projection("head", size, spec.head_bias, role="embedding")], logits)
    if spec.logit_soft_cap is not None:
        builder.emit(SoftCap(logits, spec.logit_soft_cap))
    return logits


def _compile_stage(builder: ProgramBuilder, spec: DecoderSpec, stage: StageSpec) -> CompiledDecoder:
    given, state = emit_stage(builder, spec, stage)
    last = _gather(builder, "last", state)
    logits = emit_logits(builder, spec, last)
    if isinstance(stage, MedusaHeadSpec) and stage.logit_scale != 1.0:
        builder.emit(Scale(whole(logits), stage.logit_scale))
    return builder.finish(logits, last, given)


def _compile_draft_head(builder: ProgramBuilder, spec: DecoderSpec, draft: DraftHeadSpec) -> CompiledDecoder:
    """Compiles a head. Its steps are given the states of the model and its own side by side, one of which is zero where
    the other is read, or only one if both are as wide."""
    given, embedded, state = _emit_read(builder, spec, draft)
    joined = builder.slot("joined", 2 * spec.hidden_size)
    _emit_joined(builder, spec, draft, embedded, state, joined)
    first = LayerCompiler(builder, spec, 0, None)
    if draft.reads == "joined":
        hidden = builder.slot("hidden", spec.hidden_size)
        builder.project(joined, [Projection("fc", spec.hidden_size, draft.fc_bias)], hidden)
        stream = first.emit(Stream(hidden))
    else:
        stream = first.emit_after(Stream(state), joined)
    for layer in range(1, len(spec.layers)):
        stream = LayerCompiler(builder, spec, layer, None).emit(stream)
    if spec.has_final_norm:
        last = emit_stream_norm(builder, spec, "norm", stream)
    else:
        stream = first.summed(stream)
        last = stream.hidden
    kept = last if draft.states == "normed" else stream.hidden
    return builder.finish(emit_logits(builder, spec, last, draft.head_size), kept, given)


def _emit_read(builder: ProgramBuilder, spec: DecoderSpec, draft: DraftHeadSpec) -> tuple[Slot, Slot, Slot]:
    """Emits what a head reads; returns the given slot, the embeddings and the states."""
    width = spec.hidden_size
    embedded = builder.slot("embedded", width)
    table = builder.weight("embed", spec.vocab_size, width, role="embedding")
    builder.emit(Embed(table, embedded, spec.embedding_scale, num_tokens=spec.vocab_size))
    if draft.reads == "joined":
        state = builder.slot("given", width)
        return state, embedded, state
    given, state = builder.slot("given", width * (draft.num_states + 1)), builder.slot("hidden", width)
    builder.emit(Copy(Span(given, width * draft.num_states, width), whole(state)))
    columns = Span(given, 0, width * draft.num_states)
    builder.project(columns, [Projection("fc", width, draft.fc_bias)], state, accumulate=True)
    return given, embedded, state


def _emit_joined(
    builder: ProgramBuilder, spec: DecoderSpec, draft: DraftHeadSpec, embedded: Slot, state: Slot, joined: Slot
) -> None:
    width = spec.hidden_size
    pairs = [("embed_norm", embedded), ("state_norm", state)]
    for at, (name, read) in enumerate(pairs if draft.embedding_first else reversed(pairs)):
        normed = read
        if draft.has_norms:
            normed = emit_norm(builder, spec.norm, name, read, builder.slot("normed", width))
        builder.emit(Copy(whole(normed), Span(joined, at * width, width)))
        if draft.norms_stream and read is state:
            builder.emit(Copy(whole(normed), whole(state)))
