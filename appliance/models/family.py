"""The common parts of families: a model's facts in one record, block specs from them, and weight maps from tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from appliance.checkpoint.config import ConfigFacts, ConfigFields, LayerFacts, normalize_config, text_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.rope import RopeFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    QueryKeyNorm,
    RoutingSpec,
    Transform,
    WeightSource,
)
from appliance.models.errors import ModelError, Problem
from appliance.models.rotary import rope_spec
from appliance.program.record import ActivationKind

ACTIVATIONS: Final[dict[str, ActivationKind]] = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
_ROTARY_TENSORS: Final = ("*rotary_emb.inv_freq", "*rope_freqs.weight")


class Part(msgspec.Struct, frozen=True):
    """One weight of a family: its logical name, the checkpoint module that holds it, and its form there."""

    name: str
    module: str
    bias: bool = False
    transform: Transform = "none"
    num_heads: int = 0
    rows: tuple[int, int] | tuple[int, int, int] | None = None
    index: int | None = None  # of a stack of matrices
    suffix: str = ".weight"
    num_parts: int = 1
    scale: float = 1.0

    def sources(self, logical_prefix: str, module_prefix: str) -> Iterable[tuple[str, WeightSource]]:
        """Yields the weight and its bias, which is stored as the weight is, but never less one."""
        source = WeightSource(
            tensor=f"{module_prefix}{self.module}{self.suffix}",
            transform=self.transform,
            num_heads=self.num_heads,
            rows=self.rows,
            index=self.index,
            num_parts=self.num_parts,
            scale=self.scale,
        )
        yield f"{logical_prefix}{self.name}", source
        if self.bias:
            order: Transform = "none" if self.transform == "add_one" else self.transform
            tensor = f"{module_prefix}{self.module}.bias"
            yield f"{logical_prefix}{self.name}.bias", replace(source, tensor=tensor, transform=order)


class Model(msgspec.Struct, frozen=True):
    """A checkpoint's facts, its config in one typed form, and each kind of rotation that its layers have. fields: typed
    lookups of values that only some families have."""

    facts: ModelFacts
    fields: ConfigFields
    config: ConfigFacts
    ropes: tuple[tuple[RopeFacts, RopeSpec], ...]

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        max_model_len: int,
        refused: Mapping[str, str] | None = None,
        own_activation: str | None = None,
    ) -> "Model":
        """Reads a checkpoint's facts. max_model_len: the longest sequence that will run. refused: the keys of a config
        that the family cannot express where they are set (neither null nor false), each with the reason.
        own_activation: one that only this family knows.

        Raises ModelError with all that cannot be expressed, and CheckpointError if the config has another form.
        """
        fields, config = ConfigFields(text_config(facts.config)), normalize_config(facts.config)
        problems = [*_asked_for(fields, refused or {}), *_unknown_activation(config, own_activation)]
        ropes: list[tuple[RopeFacts, RopeSpec]] = []
        for rope in _different(layer.rope for layer in config.layers):
            try:
                ropes.append((rope, rope_spec(rope, config, max_model_len)))
            except ModelError as error:
                problems += error.problems
        if problems:
            raise ModelError(*problems)
        return cls(facts, fields, config, tuple(ropes))

    def flag(self, key: str, default: bool) -> bool:
        """Reads a boolean of the config that only some families have. Raises CheckpointError if it is not a boolean."""
        return default if self.fields.get(key) is None else self.fields.flag(key)

    def require(self, key: str, value: str) -> None:
        """Raises ModelError if the config states another text than the one that the family has."""
        found = self.fields.text(key, value)
        if found != value:
            message = f"{key} is {found!r} in the checkpoint's config, which is not in this version"
            raise ModelError(Problem(message, allowed=value))

    def attention(self, layer: LayerFacts) -> AttentionSpec:
        config = self.config
        return AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            rope=self.rope(layer),
            window=layer.window,
            chunk=layer.chunk,
            soft_cap=config.attn_soft_cap,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_out_bias,
        )

    def count(self, key: str, default: int) -> int:
        """Returns a count of the config that only some families have. Raises CheckpointError for any other value."""
        return self.fields.count(key, default, least=0)

    def counts(self, key: str) -> tuple[int, ...]:
        """Returns a list of counts of the config, empty by default. Raises CheckpointError for any other value."""
        values = self.fields.get(key) or []
        if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
            raise CheckpointError("config.json", f"{key} is {values!r}; a list of whole numbers is expected")
        return tuple(values)

    def number(self, key: str, default: float) -> float:
        """Returns a number of the config above zero. Raises CheckpointError for any other value."""
        return self.fields.positive(key) or default

    def activation(self, key: str, default: str) -> ActivationKind:
        """Returns an activation of the config that only some families have. Raises ModelError for an unknown one."""
        name = self.fields.text(key, default)
        if name not in ACTIVATIONS:
            raise ModelError(_unknown(name))
        return ACTIVATIONS[name]

    @property
    def a_log(self) -> Transform:
        """How the logarithms of decay rates are stored."""
        return "log_of_negated" if self.facts.stored.negated_rates else "none"

    def has_tensor(self, ending: str) -> bool:
        """Returns whether the name of some tensor ends so."""
        return any(tensor.name.endswith(ending) for tensor in self.facts.tensors)

    @property
    def activation_kind(self) -> ActivationKind:
        """The activation of the config, which is not the family's own."""
        return ACTIVATIONS[self.config.activation]

    def rope(self, layer: LayerFacts) -> RopeSpec | None:
        return next((spec for facts, spec in self.ropes if facts == layer.rope), None)

    def feed_forward(self, gated: bool = True) -> FeedForwardSpec:
        size, bias = self.config.intermediate_size, self.config.mlp_bias
        return FeedForwardSpec(size, self.activation_kind, gated=gated, bias=bias)

    def experts(
        self, routing: RoutingSpec, shared: FeedForwardSpec | None = None, shared_gate: bool = False
    ) -> ExpertsSpec:
        """Returns experts of the config's number and width, with its activation."""
        return ExpertsSpec(
            num_experts=self.config.num_experts,
            num_chosen=self.config.num_experts_per_token,
            width=self.config.moe_intermediate_size,
            activation=self.activation_kind,
            routing=routing,
            shared=shared,
            shared_gate=shared_gate,
        )

    def shared_experts(self, number: int) -> FeedForwardSpec | None:
        """Returns so many experts that all tokens go through, as one block."""
        width = number * self.config.moe_intermediate_size
        return FeedForwardSpec(width, self.activation_kind) if number else None

    def query_key_norm(self, over: Literal["head", "whole"] = "head", after_rotation: bool = False) -> QueryKeyNorm:
        """Returns an RMS norm of queries and keys with the config's epsilon."""
        return QueryKeyNorm(NormSpec("rms", self.config.norm_eps), over, after_rotation=after_rotation)

    def weights(
        self,
        top: Iterable[Part],
        layer: Iterable[Part] | Callable[[int], Iterable[Part]],
        root: str = "model.",
        layers: str = "layers.",
    ) -> dict[str, WeightSource]:
        """Returns the map from logical names to sources. `root` is left out if none of its tensors begins with it.

        layer: the parts of every layer, or a function from a layer's number to its parts.
        """
        if self.facts.tensors and not any(tensor.name.startswith(root) for tensor in self.facts.tensors):
            root = ""
        found: dict[str, WeightSource] = {}
        for part in top:
            found.update(part.sources("", "" if part.name == "head" else root))
        alike = None if callable(layer) else tuple(layer)
        for index in range(self.config.num_layers):
            for part in layer(index) if callable(layer) else alike or ():
                found.update(part.sources(f"layers.{index}.", f"{root}{layers}{index}."))
        return found

    def ignored(self) -> tuple[str, ...]:
        """Returns the patterns of tensors to ignore: rotary frequencies, which are computed, and a stored head that is
        tied, as it is a copy of the embedding."""
        return (*_ROTARY_TENSORS, "lm_head.weight") if self.config.tie_embeddings else _ROTARY_TENSORS


def _asked_for(fields: ConfigFields, refused: Mapping[str, str]) -> Iterator[Problem]:
    for key, why in refused.items():
        value = fields.get(key)
        if value is not None and value is not False:
            yield Problem(f"{key} in the checkpoint's config is not in this version: {why}")


def _unknown_activation(config: ConfigFacts, known: str | None) -> Iterator[Problem]:
    if config.activation not in (*ACTIVATIONS, known):
        yield _unknown(config.activation)


def _unknown(activation: str) -> Problem:
    message = f"the activation {activation!r} of the checkpoint is not in this version"
    return Problem(message, allowed=", ".join(ACTIVATIONS))


def _different(ropes: Iterable[RopeFacts | None]) -> list[RopeFacts]:
    """Returns each kind of rotation once, in the order of layers."""
    found: list[RopeFacts] = []
    for rope in ropes:
        if rope is not None and rope not in found:
            found.append(rope)
    return found
