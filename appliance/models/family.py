"""What families have in common: a model's facts in one record, block specs from them, and weight maps from tables."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from appliance.checkpoint.config import ConfigFacts, LayerFacts, normalize_config
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import AttentionSpec, FeedForwardSpec, NormSpec, RopeSpec, Transform, WeightSource
from appliance.models.errors import ModelError
from appliance.models.rotary import rope_spec
from appliance.program.operators import ActivationKind

ACTIVATIONS: Final[dict[str, ActivationKind]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One weight of a family: its logical name, the checkpoint module that holds it, and how it is stored there."""

    name: str
    module: str
    bias: bool = False
    transform: Transform = "none"
    num_heads: int = 0
    rows: tuple[int, int] | None = None

    def sources(self, logical_prefix: str, module_prefix: str) -> Iterable[tuple[str, WeightSource]]:
        source = WeightSource(f"{module_prefix}{self.module}.weight", self.transform, self.num_heads, self.rows)
        yield f"{logical_prefix}{self.name}", source
        if self.bias:
            tensor = f"{module_prefix}{self.module}.bias"
            yield f"{logical_prefix}{self.name}.bias", replace(source, tensor=tensor)


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint's facts, its config in one typed form, and the longest sequence that will run."""

    facts: ModelFacts
    config: ConfigFacts
    max_model_len: int

    @classmethod
    def of(cls, facts: ModelFacts, max_model_len: int) -> "Model":
        return cls(facts, normalize_config(facts.config), max_model_len)

    def attention(self, layer: LayerFacts, head_norm: NormSpec | None = None) -> AttentionSpec:
        config = self.config
        return AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.query_pre_attn_scalar**-0.5,
            rope=self.rope(layer),
            window=layer.window,
            soft_cap=config.attn_soft_cap,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_out_bias,
            head_norm=head_norm,
        )

    def rope(self, layer: LayerFacts) -> RopeSpec | None:
        return None if layer.rope is None else rope_spec(layer.rope, self.config, self.max_model_len)

    def feed_forward(self, gated: bool = True) -> FeedForwardSpec:
        kind = ACTIVATIONS.get(self.config.activation)
        if kind is None:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ModelError(f"the activation {self.config.activation!r} is not in this version; known: {known}")
        return FeedForwardSpec(self.config.intermediate_size, kind, gated=gated, bias=self.config.mlp_bias)

    def weights(
        self, top: Iterable[Part], layer: Iterable[Part], root: str = "model.", layers: str = "layers."
    ) -> dict[str, WeightSource]:
        """The map from logical names. `root` is left out where the checkpoint was saved from the inner module."""
        if not any(tensor.name.startswith(root) for tensor in self.facts.tensors):
            root = ""
        found: dict[str, WeightSource] = {}
        for part in top:
            found.update(part.sources("", "" if part.name == "head" else root))
        parts = tuple(layer)
        for index in range(self.config.num_layers):
            for part in parts:
                found.update(part.sources(f"layers.{index}.", f"{root}{layers}{index}."))
        return found

    def ignored(self) -> tuple[str, ...]:
        """A tied head that was stored all the same is a copy of the embedding."""
        return ("lm_head.weight",) if self.config.tie_embeddings else ()
