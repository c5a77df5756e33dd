"""DecoderSpec: a model family as data. `layers.decoder` compiles one into a StepProgram; nothing here computes.

Logical weight names, which `DecoderSpec.weights` maps to checkpoint tensors (see docs/concepts/models.md):
`embed`, `positions`, `norm`, `norm.bias`, `head`, and under `layers.<i>.`: `attention_norm`, `q`, `k`, `v`, `q_norm`,
`k_norm`, `o`, `post_attention_norm`, `feed_forward_norm`, `gate`, `up`, `down`, `post_feed_forward_norm`, each with
`.bias` if the block has one. A layer of experts has `router`, `router.correction`, `experts.<e>.gate|up|down`,
`shared.gate|up|down` and `shared_gate` in place of `gate`, `up` and `down`.
"""

from typing import Literal

import msgspec

from appliance.layers.rope import RopeSpec
from appliance.program.record import ActivationKind
from appliance.program.routing import GroupScoring, Scoring

Transform = Literal["none", "transpose", "add_one", "unpermute_heads"]


class WeightSource(msgspec.Struct, frozen=True):
    """The source of one logical weight: a checkpoint tensor after `transform`, then a slice of its rows.

    index: the matrix of a stack [E, rows, columns], or the row of a stack of vectors [E, size], that is meant.
    transpose: it is stored (in, out). add_one: the weight is 1 + w. unpermute_heads: the rows of each of num_heads
    heads are stored in the order (0, d/2, 1, d/2 + 1, ...) for interleaved rotation, and are reordered. rows: (start,
    stop) of a fused tensor, or (start, stop, step) of one in which the rows of several weights alternate.
    """

    tensor: str
    transform: Transform = "none"
    num_heads: int = 0  # unpermute_heads only
    rows: tuple[int, int] | tuple[int, int, int] | None = None
    index: int | None = None


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


class RoutingSpec(msgspec.Struct, frozen=True):
    """The choice and the weights of a token's experts; the words are those of program.routing.ChooseExperts."""

    scoring: Scoring = "softmax"
    correction: bool = False
    bias: bool = False  # of the router's own logits
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    group_scoring: GroupScoring = "top2"


class ExpertsSpec(msgspec.Struct, frozen=True):
    """A feed-forward of `num_experts` blocks of `width`, of which a token goes through `num_chosen`.

    shared: a block for all tokens, beside the chosen ones; with shared_gate times the sigmoid of a number a token.
    limit, alpha, up_offset, weigh_input: as in program.routing.Experts.
    """

    num_experts: int
    num_chosen: int
    width: int
    activation: ActivationKind
    routing: RoutingSpec
    gated: bool = True
    bias: bool = False
    shared: FeedForwardSpec | None = None
    shared_gate: bool = False
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    weigh_input: bool = False


class LayerSpec(msgspec.Struct, frozen=True):
    attention: AttentionSpec
    feed_forward: FeedForwardSpec | ExpertsSpec
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
