"""A dense decoder by what it has other than Llama: families are values of `Dense`, and this module builds them all."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from appliance.layers.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    Mixer,
    NormSpec,
    QueryKeyNorm,
    ResidualSpec,
    Transform,
)
from appliance.models.experts import Mixture
from appliance.models.family import Model, Part

# The checkpoint modules of the logical weights, as Llama names them.
_MODULES: Final[Mapping[str, str]] = {
    "embed": "embed_tokens",
    "positions": "embed_positions",
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
_NORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "pre": ("attention_norm", "feed_forward_norm"),
    "output": ("post_attention_norm", "post_feed_forward_norm"),
    "sandwich": ("attention_norm", "post_attention_norm", "feed_forward_norm", "post_feed_forward_norm"),
}


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """Differences from Llama.

    modules: checkpoint modules of logical weights that have another name there. root, layers: prefixes of these.
    norm: None for RMS with the config's epsilon. stored_norms: how norm weights lie in safetensors.
    qkv: how query, key and value rows are stored: apart; one after the other in the module `qkv`; or in that module by
    KV head, the query rows of its group first. gate_up: whether both lie in one module of that name.
    linear: how linear weights are stored. logit_scale: of the logits. mixer: what a layer has in place of the config's
    attention, given its number and that. mixer_parts: its weights in place of queries, keys, values and output. parts:
    further weights of each layer. ignored: patterns of further tensors.
    """

    modules: Mapping[str, str] = {}
    root: str = "model."
    layers: str = "layers."
    norm: NormSpec | None = None
    stored_norms: Transform = "none"
    residual: ResidualSpec = ResidualSpec()
    query_key_norm: QueryKeyNorm | None = None
    qkv: Literal["apart", "joined", "by_head"] = "apart"
    gate_up: bool = False
    linear: Transform = "none"
    gated: bool = True
    interleaved: bool = False
    learned_positions: bool = False
    position_offset: int = 0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    head_bias: bool = False
    mixer: Callable[[int, AttentionSpec], Mixer] | None = None
    mixer_parts: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()
    ignored: tuple[str, ...] = ()


def dense_decoder(model: Model, dense: Dense, mixture: Mixture | None = None) -> DecoderSpec:
    """Returns the decoder of a family; sizes, biases, windows, positions and soft caps are those of the config.

    mixture: which layers have experts in place of the one feed-forward.
    """
    config, names = model.config, _Modules(model, dense, mixture)
    norm = dense.norm or NormSpec("rms", config.norm_eps)
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(
            LayerSpec(
                _mixer(model, dense, index),
                model.feed_forward(dense.gated) if mixture is None else mixture.feed_forward(index),
                dense.residual,
            )
            for index in range(config.num_layers)
        ),
        norm=norm,
        weights=model.weights(names.top(norm), lambda index: names.layer(norm, index), dense.root, dense.layers),
        embedding_scale=dense.embedding_scale,
        learned_positions=dense.learned_positions,
        position_offset=dense.position_offset,
        tie_embeddings=config.tie_embeddings,
        head_bias=dense.head_bias,
        logit_soft_cap=config.final_soft_cap,
        ignored_tensors=(*model.ignored(), *dense.ignored),
    )


def _mixer(model: Model, dense: Dense, index: int) -> Mixer:
    attention = replace(model.attention(model.config.layers[index]), query_key_norm=dense.query_key_norm)
    if dense.interleaved and attention.rope is not None:
        attention = replace(attention, rope=replace(attention.rope, interleaved=True))
    return attention if dense.mixer is None else dense.mixer(index, attention)


class _Modules(msgspec.Struct, frozen=True):
    """The checkpoint modules that hold the weights of a model."""

    model: Model
    dense: Dense
    mixture: Mixture | None

    def top(self, norm: NormSpec) -> Iterator[Part]:
        dense = self.dense
        yield self._part("embed")
        if dense.learned_positions:
            yield self._part("positions")
        scale = dense.logit_scale
        yield from (replace(part, scale=scale) for part in self._norm("norm", norm, dense.stored_norms))
        if not self.model.config.tie_embeddings:
            yield self._part("head", dense.head_bias)

    def layer(self, norm: NormSpec, index: int) -> Iterator[Part]:
        dense, config = self.dense, self.model.config
        names = _NORMS[dense.residual.norms]
        for name in names[:1] if dense.residual.one_norm else names:
            yield from self._norm(name, norm, dense.stored_norms)
        yield from dense.mixer_parts or (*self._qkv(), self._linear("o", config.attention_out_bias))
        if dense.query_key_norm is not None:
            for name in ("q_norm", "k_norm"):
                yield from self._norm(name, dense.query_key_norm.norm, dense.stored_norms)
        yield from dense.parts
        yield from self._feed_forward() if self.mixture is None else self.mixture.parts(index)

    def _feed_forward(self) -> Iterator[Part]:
        bias, width = self.model.config.mlp_bias, self.model.config.intermediate_size
        if self.dense.gate_up:
            both = self._linear("gate_up", bias)
            yield replace(both, name="gate", rows=(0, width))
            yield replace(both, name="up", rows=(width, 2 * width))
        else:
            yield from (self._linear(name, bias) for name in (("gate", "up") if self.dense.gated else ("up",)))
        yield self._linear("down", bias)

    def _qkv(self) -> Iterator[Part]:
        config, bias = self.model.config, self.model.config.attention_bias
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

    def _norm(self, name: str, norm: NormSpec, stored: Transform) -> Iterator[Part]:
        if norm.weight:
            yield Part(name, self._module(name), norm.bias, stored)

    def _linear(self, name: str, bias: bool) -> Part:
        return Part(name, self._module(name), bias, self.dense.linear)

    def _part(self, name: str, bias: bool = False) -> Part:
        return Part(name, self._module(name), bias)

    def _module(self, name: str) -> str:
        return self.dense.modules.get(name) or _MODULES[name]
