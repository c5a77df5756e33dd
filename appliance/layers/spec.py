"""DecoderSpec: a model family as data. `layers.decoder` compiles one into a StepProgram; nothing here computes."""

from dataclasses import dataclass
from typing import Literal

from appliance.kernels.operators import ActivationKind

Transform = Literal["none", "transpose", "add_one", "unpermute_heads"]


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where one logical weight comes from: checkpoint tensors joined along rows, each after `transform`.

    rows: a (start, stop) slice of a fused checkpoint tensor; None takes all of it.
    """

    tensors: tuple[str, ...]
    transform: Transform = "none"
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NormSpec:
    kind: Literal["rms", "layer"]
    eps: float


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary angles. inv_freq [rotary_dim / 2] already holds the scaling (linear, llama3, yarn, longrope)."""

    rotary_dim: int
    inv_freq: tuple[float, ...]
    interleaved: bool = False
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: NormSpec | None = None  # query and key norms of each head


@dataclass(frozen=True, slots=True)
class FeedForwardSpec:
    intermediate_size: int
    activation: ActivationKind
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    post_attention_norm: bool = False  # Gemma 2 and 3: a norm after the block, before the residual
    post_feed_forward_norm: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    embedding_scale: float = 1.0
    learned_positions: bool = False
    position_offset: int = 0
    tie_embeddings: bool = False
    logit_soft_cap: float | None = None
    logit_scale: float = 1.0
    weights: dict[str, WeightSource] | None = None  # logical name -> checkpoint tensors; see docs/concepts/models.md
