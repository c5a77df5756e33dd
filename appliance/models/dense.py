"""A dense decoder by what it has other than Llama: families are values of `Dense`, and this module builds them all."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.config import LayerFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import RecurrentSpec
from appliance.layers.spec import (
    AttentionSpec,
    DecoderSpec,
    FeedForward,
    FeedForwardSpec,
    LayerSpec,
    Mixer,
    ParallelSpec,
    PositionBias,
    QueryKeyNorm,
    ResidualSpec,
    Transform,
)
from appliance.models.experts import Mixture, block_parts
from appliance.models.family import Model, Part

# The checkpoint modules of the logical weights, as Llama names them.
_MODULES: Final[Mapping[str, str]] = {
    "embed": "embed_tokens",
    "positions": "embed_positions",
    "types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "norm": "norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_feed_forward_norm": "post_feedforward_layernorm",
    "qkv": "self_attn.qkv_proj",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate_up": "mlp.gate_up_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# The norms of a layer's mixer, and those of its feed-forward.
_NORMS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "pre": (("attention_norm",), ("feed_forward_norm",)),
    "output": (("post_attention_norm",), ("post_feed_forward_norm",)),
    "post": (("post_attention_norm",), ("post_feed_forward_norm",)),
    "sandwich": (("attention_norm", "post_attention_norm"), ("feed_forward_norm", "post_feed_forward_norm")),
}
_FEED_FORWARDS: Final = ("mlp", "moe")  # the kinds of layers without a mixer


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """Differences from Llama.

    modules: checkpoint modules of logical weights that have another name there. root, layers: prefixes of these.
    norm: None for RMS with the config's epsilon. stored_norms: how norm weights lie in safetensors.
    qkv: how query, key and value rows are stored: apart; one after the other in the module `qkv`; or in that module by
    KV head, the query rows of its group first; or apart, with the rows of each query head's gate after its own.
    gate_up: whether both lie in one module of that name, and with up_first the rows of up first. linear: how linear
    weights are stored.
    logit_scale: of the logits. score_scale: of the attention scores, beside the config's own. mixer: what a layer that
    attends has in place of the config's attention, given its number and that. mixer_parts: its weights in place of
    queries, keys, values and output. parts: further weights of each of these layers, or of the layer of a number.
    single_blocks: a layer is a mixer, or a feed-forward where its kind is "mlp" or "moe", with one norm. ignored:
    patterns of further tensors. feed_forward: what a layer has in place of the usual one, given its number and that.
    tables: further weights that no layer has. scales_embeds: see DecoderSpec. encoder: of a model that pools, runs each
    sequence whole, and has no output head.
    """

    modules: Mapping[str, str] = {}
    root: str = "model."
    layers: str = "layers."
    norm: NormSpec | None = None
    stored_norms: Transform = "none"
    residual: ResidualSpec = ResidualSpec()
    query_key_norm: QueryKeyNorm | None = None
    qkv: Literal["apart", "joined", "by_head", "gated"] = "apart"
    gate_up: bool = False
    up_first: bool = False
    linear: Transform = "none"
    gated: bool = True
    interleaved: bool = False
    embedding_norm: bool = False
    learned_positions: bool = False
    position_offset: int = 0
    embedding_scale: float = 1.0
    scales_embeds: bool = True
    logit_scale: float = 1.0
    score_scale: float = 1.0
    head_bias: bool = False
    mixer: Callable[[int, AttentionSpec], Mixer] | None = None
    mixer_parts: tuple[Part, ...] = ()
    parts: tuple[Part, ...] | Callable[[int], tuple[Part, ...]] = ()
    single_blocks: bool = False
    ignored: tuple[str, ...] = ()
    feed_forward: Callable[[int, FeedForward], FeedForward] | None = None
    tables: tuple[Part, ...] = ()
    encoder: "Encoder | None" = None


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoder has beside its layers.

    embedding_norm: of the sum of the embeddings. token_types: vectors of segments. bare_first: the first layer's
    attention reads its input without a norm.
    """

    embedding_norm: bool = True
    final_norm: bool = False
    token_types: bool = False
    position_bias: PositionBias | None = None
    bare_first: bool = False

    def tables(self) -> Iterator[str]:
        if self.token_types:
            yield "types"
        if self.position_bias is not None:
            yield "position_bias"


class Recurrent(msgspec.Struct, frozen=True):
    """The recurrent mixer of the layers that have no attention, and of "hybrid" ones, beside it.

    parts: its weights. attention_scale, scale: of the outputs of both, where they stand side by side. residual: of
    layers that have no attention, where it is another.
    """

    spec: RecurrentSpec
    parts: tuple[Part, ...]
    attention_scale: float = 1.0
    scale: float = 1.0
    residual: ResidualSpec | None = None


def dense_decoder(
    model: Model,
    dense: Dense,
    mixture: Mixture | None = None,
    recurrent: Recurrent | None = None,
    feed_forward: FeedForwardSpec | None = None,
) -> DecoderSpec:
    """Returns the decoder of a family; sizes, biases, windows, positions and soft caps are those of the config.

    mixture: which layers have experts in place of the one feed-forward. recurrent: the mixer of layers that are not
    attention. feed_forward: the dense one, where the config's values alone do not give it.
    """
    config, fed = model.config, feed_forward or model.feed_forward(dense.gated)
    names = _Modules(model, dense, fed, mixture, recurrent)
    norm = dense.norm or NormSpec("rms", config.norm_eps)
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(
            LayerSpec(
                _mixer(model, dense, index, recurrent),
                _feed_forward(dense, index, layer, fed if mixture is None else mixture.feed_forward(index, fed)),
                _residual(dense, index, layer, recurrent),
            )
            for index, layer in enumerate(config.layers)
        ),
        norm=norm,
        weights=model.weights(names.top(norm), lambda index: names.layer(norm, index), dense.root, dense.layers),
        embedding_scale=dense.embedding_scale,
        scales_embeds=dense.scales_embeds,
        learned_positions=dense.learned_positions,
        position_offset=dense.position_offset,
        tie_embeddings=config.tie_embeddings,
        head_bias=dense.head_bias,
        logit_soft_cap=config.final_soft_cap,
        has_final_norm=dense.encoder is None or dense.encoder.final_norm,
        embedding_norm=norm if dense.embedding_norm or (dense.encoder and dense.encoder.embedding_norm) else None,
        has_token_types=dense.encoder is not None and dense.encoder.token_types,
        ignored_tensors=(*model.ignored(), *dense.ignored),
    )


def _mixer(model: Model, dense: Dense, index: int, recurrent: Recurrent | None) -> Mixer | None:
    layer = model.config.layers[index]
    if not layer.attends:
        return None if recurrent is None or layer.kind in _FEED_FORWARDS else recurrent.spec
    attention = _attention(model, dense, index)
    if recurrent is None or layer.kind != "hybrid" or not isinstance(attention, AttentionSpec):
        return attention
    return ParallelSpec(attention, recurrent.spec, recurrent.attention_scale, recurrent.scale)


def _residual(dense: Dense, index: int, layer: LayerFacts, recurrent: Recurrent | None) -> ResidualSpec:
    if dense.encoder is not None and dense.encoder.bare_first and index == 0:
        return replace(dense.residual, bare_mixer=True)
    own = None if recurrent is None or layer.attends else recurrent.residual
    return dense.residual if own is None else own


def _feed_forward(dense: Dense, index: int, layer: LayerFacts, spec: FeedForward) -> FeedForward | None:
    if dense.single_blocks and layer.kind not in _FEED_FORWARDS:
        return None
    return spec if dense.feed_forward is None else dense.feed_forward(index, spec)


def _attention(model: Model, dense: Dense, index: int) -> Mixer:
    attention = model.attention(model.config.layers[index])
    scale = attention.scale * dense.score_scale
    attention = replace(attention, query_key_norm=dense.query_key_norm, scale=scale)
    if dense.encoder is not None:
        attention = replace(attention, is_whole=True, position_bias=dense.encoder.position_bias)
    if dense.interleaved and attention.rope is not None:
        attention = replace(attention, rope=replace(attention.rope, interleaved=True))
    return attention if dense.mixer is None else dense.mixer(index, attention)


class _Modules(msgspec.Struct, frozen=True):
    """The checkpoint modules that hold the weights of a model."""

    model: Model
    dense: Dense
    feed_forward: FeedForwardSpec
    mixture: Mixture | None
    recurrent: Recurrent | None

    def top(self, norm: NormSpec) -> Iterator[Part]:
        dense = self.dense
        yield self._part("embed")
        yield from dense.tables
        if dense.embedding_norm:
            yield from self._norms(("embed_norm",), norm)
        if dense.learned_positions:
            yield self._part("positions")
        if dense.encoder is not None:
            yield from map(self._part, dense.encoder.tables())
            has = {"embed_norm": dense.encoder.embedding_norm, "norm": dense.encoder.final_norm}
            yield from self._norms((name for name, there in has.items() if there), norm)
            return
        scale = dense.logit_scale
        yield from (replace(part, scale=scale) for part in self._norms(("norm",), norm))
        if not self.model.config.tie_embeddings:
            yield self._part("head", dense.head_bias)

    def layer(self, norm: NormSpec, index: int) -> Iterator[Part]:
        dense, layer = self.dense, self.model.config.layers[index]
        residual = _residual(dense, index, layer, self.recurrent)
        of_mixer, of_feed_forward = _NORMS[residual.norms]
        of_mixer = () if residual.bare_mixer else of_mixer
        if layer.kind not in _FEED_FORWARDS:
            yield from self._norms(of_mixer, norm)
            yield from self._mixer(index, layer)
        if not dense.single_blocks or layer.kind in _FEED_FORWARDS:
            yield from self._norms(() if residual.one_norm else of_feed_forward, norm)
            is_sparse = self.mixture is not None and self.mixture.is_sparse[index]
            yield from self.mixture.parts() if self.mixture is not None and is_sparse else self._feed_forward()

    def _mixer(self, index: int, layer: LayerFacts) -> Iterator[Part]:
        norm = self.dense.query_key_norm
        if layer.attends:
            out = self._linear("o", self.model.config.attention_out_bias)
            yield from self.dense.mixer_parts or (*self._qkv(), out)
            yield from self.dense.parts(index) if callable(self.dense.parts) else self.dense.parts
        if layer.attends and norm is not None:
            yield from self._norms(("q_norm", "k_norm"), norm.norm)
        if self.recurrent is not None and (not layer.attends or layer.kind == "hybrid"):
            yield from self.recurrent.parts

    def _feed_forward(self) -> Iterator[Part]:
        gate = "gate_up" if self.dense.gate_up else "gate"
        up = "gate_up" if self.dense.gate_up else "up"
        modules = (self._module(gate), self._module(up), self._module("down"))
        yield from block_parts(self.feed_forward, "", "", modules, self.dense.linear, self.dense.up_first)

    def _qkv(self) -> Iterator[Part]:
        config, bias = self.model.config, self.model.config.attention_bias
        if self.dense.qkv == "gated":
            yield from self._gated_queries()
            yield from (self._linear(name, bias) for name in ("k", "v"))
            return
        if self.dense.qkv == "apart":
            order: Transform = "unpermute_heads" if self.model.facts.stored.interleaved_heads else self.dense.linear
            yield replace(self._linear("q", bias), transform=order, num_heads=config.num_heads)
            yield replace(self._linear("k", bias), transform=order, num_heads=config.num_kv_heads)
            yield self._linear("v", bias)
            return
        num_parts = config.num_kv_heads if self.dense.qkv == "by_head" else 1
        start, joined = 0, self._linear("qkv", bias)
        for name, num_heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            stop = start + num_heads * config.head_dim // num_parts
            yield replace(joined, name=name, rows=(start, stop), num_parts=num_parts)
            start = stop

    def _gated_queries(self) -> Iterator[Part]:
        config = self.model.config
        both = replace(self._linear("q", config.attention_bias), num_parts=config.num_heads)
        yield replace(both, rows=(0, config.head_dim))
        gate = replace(both, name="attention_gate", bias=False, rows=(config.head_dim, 2 * config.head_dim))
        yield gate

    def _norms(self, names: Iterable[str], norm: NormSpec) -> Iterator[Part]:
        if norm.weight:
            yield from (Part(name, self._module(name), norm.bias, self.dense.stored_norms) for name in names)

    def _linear(self, name: str, bias: bool) -> Part:
        return Part(name, self._module(name), bias, self.dense.linear)

    def _part(self, name: str, bias: bool = False) -> Part:
        return Part(name, self._module(name), bias)

    def _module(self, name: str) -> str:
        return self.dense.modules.get(name) or _MODULES[name]
