"""Zamba 2: Mamba 2, before which some layers run one of a few blocks of attention that they share."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, FeedForwardSpec, LayerSpec, SharedBlockSpec
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part
from appliance.models.state_space import mamba2, mamba2_spec

_REFUSED = {"use_long_context": "transformers no longer says which base of the rotation it means"}
_EPS_OF_GATED_NORM = 1e-5
_BLOCK = "shared_transformer"


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Takes the config's `time_step_min` as no limit of a time step, as for Nemotron-H, though transformers does.
    Transformers shares blocks only where the config ties the head to the embedding."""
    model = Model.of(facts, max_model_len, _REFUSED)
    if not model.config.tie_embeddings:
        message = "tie_word_embeddings is false in the checkpoint's config, and then its blocks are not shared"
        raise ModelError(Problem(message, allowed="true"))
    config, shared = model.config, _Shared.of(model)
    spec = mamba2_spec(model, NormSpec("rms", _EPS_OF_GATED_NORM))

    def parts(layer: int) -> Iterator[Part]:
        root = "mamba_decoder." if layer in shared.layers else ""
        yield Part("attention_norm", f"{root}input_layernorm")
        yield from mamba2(model, f"{root}mamba", spec)
        if layer in shared.layers:
            yield Part("shared_out", "linear")

    top = (Part("embed", "embed_tokens"), Part("norm", "final_layernorm"))
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(LayerSpec(spec, None, shared=shared.block(layer)) for layer in range(config.num_layers)),
        norm=NormSpec("rms", config.norm_eps),
        weights=model.weights([*top, *shared.parts()], parts),
        tie_embeddings=True,
        ignored_tensors=(*model.ignored(), *shared.copies()),
    )


class _Shared(msgspec.Struct, frozen=True):
    """The shared blocks, which take turns. layers: those that have one before their mixer."""

    model: Model
    layers: tuple[int, ...]
    num_blocks: int
    rank: int
    adapts_attention: bool

    @classmethod
    def of(cls, model: Model) -> "_Shared":
        """Raises ModelError if no block is there to be shared."""
        layers = tuple(index for index, layer in enumerate(model.config.layers) if layer.kind == "hybrid")
        count = model.count("num_mem_blocks", 1)
        if not 1 <= count <= max(len(layers), 1):
            message = (
                f"num_mem_blocks is {count} in the checkpoint's config, and {len(layers)} layers have such a block"
            )
            raise ModelError(Problem(message, allowed=f"1 to {max(len(layers), 1)}"))
        adapts = model.flag("use_shared_attention_adapter", default=False)
        return cls(model, layers, count, model.count("adapter_rank", 128), adapts)

    def block(self, layer: int) -> SharedBlockSpec | None:
        if layer not in self.layers:
            return None
        model = self.model
        attention = model.attention(model.config.layers[layer])
        rope = attention.rope if model.flag("use_mem_rope", default=False) else None
        scale = (attention.head_dim / 2) ** -0.5
        return SharedBlockSpec(
            number=self._number(layer),
            attention=replace(attention, rope=rope, scale=scale, qkv_bias=False, out_bias=False),
            feed_forward=self._feed_forward(),
            adapter_rank=self.rank,
            adapts_attention=self.adapts_attention,
        )

    def parts(self) -> Iterator[Part]:
        """Yields the weights of the blocks, and of each layer's adapters, which lie in the block's first layer."""
        for number, layer in enumerate(self.layers[: self.num_blocks]):
            yield from self._block_parts(f"shared.{number}.", f"layers.{layer}.{_BLOCK}.")
        for place, layer in enumerate(self.layers):
            first = self.layers[place % self.num_blocks]
            yield from self._adapter_parts(place, f"layers.{layer}.adapter.", f"layers.{first}.{_BLOCK}.")

    def copies(self) -> Iterator[str]:
        """Yields the patterns of blocks that a checkpoint may have once more under each layer that shares them."""
        yield from (f"*layers.{layer}.{_BLOCK}.*" for layer in self.layers[self.num_blocks :])

    def _number(self, layer: int) -> int:
        return self.layers.index(layer) % self.num_blocks

    def _feed_forward(self) -> FeedForwardSpec:
        return self.model.feed_forward()

    def _block_parts(self, name: str, root: str) -> Iterator[Part]:
        fed = self._feed_forward()
        yield Part(f"{name}attention_norm", f"{root}input_layernorm")
        yield Part(f"{name}feed_forward_norm", f"{root}pre_ff_layernorm")
        yield from (Part(f"{name}{each}", f"{root}self_attn.{each}_proj") for each in ("q", "k", "v", "o"))
        for each, rows in _halves(fed.intermediate_size).items():
            yield Part(f"{name}{each}", f"{root}feed_forward.gate_up_proj", fed.bias, rows=rows)
        yield Part(f"{name}down", f"{root}feed_forward.down_proj", fed.bias)

    def _adapter_parts(self, place: int, name: str, root: str) -> Iterator[Part]:
        module = f"{root}feed_forward.gate_up_proj_adapter_list.{place}"
        yield Part(f"{name}feed_forward", f"{module}.0")
        for each, rows in _halves(self._feed_forward().intermediate_size).items():
            yield Part(f"{name}{each}", f"{module}.1", rows=rows)
        for each in ("q", "k", "v") if self.adapts_attention else ():
            module = f"{root}self_attn.linear_{each}_adapter_list.{place}"
            yield Part(f"{name}{each}.low", f"{module}.0")
            yield Part(f"{name}{each}", f"{module}.1")


def _halves(width: int) -> dict[str, tuple[int, int]]:
    """Returns the rows of gate and up in one module."""
    return {"gate": (0, width), "up": (width, 2 * width)}
