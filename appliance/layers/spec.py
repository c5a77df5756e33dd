"""DecoderSpec: a model family as data. `layers.decoder` compiles one into a StepProgram; nothing here computes.

Logical weight names, which `DecoderSpec.weights` maps to checkpoint tensors (see docs/concepts/models.md):
`embed`, `positions`, `norm`, `norm.bias`, `head`, and under `layers.<i>.`: `attention_norm`, `q`, `k`, `v`, `q_norm`,
`k_norm`, `o`, `post_attention_norm`, `feed_forward_norm`, `gate`, `up`, `down`, `post_feed_forward_norm`, each with
`.bias` if the block has one.
"""

from typing import Literal

import msgspec

from appliance.layers.rope import RopeSpec
from appliance.program.operators import ActivationKind

Transform = Literal["none", "transpose", "add_one", "unpermute_heads"]


class WeightSource(msgspec.Struct, frozen=True):
    """The source of one logical weight: a checkpoint tensor after `transform`, then a slice of its rows.

    transpose: it is stored (in, out). add_one: the weight is 1 + w. unpermute_heads: the rows of each of num_heads
    heads are stored in the order (0, d/2, 1, d/2 + 1, ...) for interleaved rotation, and are reordered. rows: (start,
    stop) of a fused tensor.
    """

    tensor: str
    transform: Transform = "none"
    num_heads: int = 0  # unpermute_heads only
    rows: tuple[int, int] | None = None


class NormSpec(msgspec.Struct, frozen=True):
    """A norm: RMS norm without a bias, or layer norm with one."""

    kind: Literal["rms", "layer"]
    eps: float


class AttentionSpec(msgspec.Struct, frozen=True):
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: NormSpec | None = None  # query and key norms of each head, before the rotation


class FeedForwardSpec(msgspec.Struct, frozen=True):
    intermediate_size: int
    activation: ActivationKind
    gated: bool = True
    bias: bool = False


class LayerSpec(msgspec.Struct, frozen=True):
    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    post_attention_norm: bool = False  # Gemma 2 and 3: a norm after the block, before the residual
    post_feed_forward_norm: bool = False


class DecoderSpec(msgspec.Struct, frozen=True):
    """A decoder as data. tie_embeddings: the head is the embedding table, and `weights` has no `head`."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    weights: dict[str, WeightSource]
    embedding_scale: float = 1.0
    learned_positions: bool = False
    position_offset: int = 0
    tie_embeddings: bool = False
    logit_soft_cap: float | None = None
    ignored_tensors: tuple[str, ...] = ()  # fnmatch patterns of checkpoint tensors that are not weights of it
