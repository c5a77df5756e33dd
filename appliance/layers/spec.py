"""DecoderSpec: a model family as data. `layers.decoder` compiles one into a StepProgram; nothing here computes.

Logical weight names, which `DecoderSpec.weights` maps to checkpoint tensors (see docs/concepts/models.md):
`embed`, `positions`, `types`, `position_bias`, `embed_norm`, `norm`, `head`, those of a pooling head, and under
`layers.<i>.`: `attention_norm`, `q`, `k`, `v`, `q_norm`, `k_norm`, `o`, `sinks`, `attention_gate`,
`post_attention_norm`, `feed_forward_norm`, `gate`, `up`, `down`, `post_feed_forward_norm`, each with `.bias` if the
block has one. A layer of experts has `router`, `router.correction`, `experts.<e>.gate|up|down`, `shared.gate|up|down`
and `shared_gate` in place of `gate`, `up` and `down`. The recurrent mixers, and what few families have, name theirs in
their docstrings.
"""

from typing import Literal

import msgspec

from appliance.catalog.pooling import PoolingKind
from appliance.layers.draft_spec import DraftHeadSpec, KeptStates, StageSpec
from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import RecurrentSpec
from appliance.layers.rope import RopeSpec
from appliance.layers.stream_spec import PerLayerSpec, StreamsSpec
from appliance.program.record import ActivationKind, LearnedActivationKind
from appliance.program.routing import GroupScoring, Scoring

Transform = Literal["none", "transpose", "transpose_parts", "add_one", "unpermute_heads", "log_of_negated", "unit_rows"]


class WeightSource(msgspec.Struct, frozen=True):
    """The source of one logical weight: a checkpoint tensor after `transform`, then a slice of its rows.

    index: the matrix of a stack [E, rows, columns], or the row of a stack of vectors [E, size], that is meant.
    transpose: it is stored (in, out). transpose_parts: the rows taken of each part become columns. add_one: the weight
    is 1 + w. log_of_negated: it is log(-w). unpermute_heads: the rows of each of num_heads heads are stored in the
    order (0, d/2, 1, d/2 + 1, ...) for interleaved rotation, and are reordered. rows: (start, stop) of a fused tensor,
    or (start, stop, step) of one in which the rows of several weights alternate; of each of num_parts equal parts, such
    as heads, in which the tensor is stored. unit_rows: each row is divided by its Euclidean length. scale: a factor of
    every value of a vector.
    """

    tensor: str
    transform: Transform = "none"
    num_heads: int = 0  # unpermute_heads only
    rows: tuple[int, int] | tuple[int, int, int] | None = None
    index: int | None = None
    num_parts: int = 1
    scale: float = 1.0


class QueryKeyNorm(msgspec.Struct, frozen=True):
    """A norm of queries and keys: of each head, or of all heads as one vector.

    by_head: each head has a weight vector of its own, in place of one for all heads. after_rotation: the norm follows
    the rotary positions; in most models it precedes them.
    """

    norm: NormSpec
    over: Literal["head", "whole"] = "head"
    by_head: bool = False
    after_rotation: bool = False


class Temperature(msgspec.Struct, frozen=True):
    """A factor of the queries that grows with the position; the words are those of ScaleByPosition."""

    scale: float
    length: int
    offset: int = 0


class PositionBias(msgspec.Struct, frozen=True):
    """Numbers added to the scores by the distance of two tokens, one a head and bucket: the weight `position_bias`
    [num_buckets, heads], which layers share. Distances from max_distance on are in the last bucket of their side."""

    num_buckets: int
    max_distance: int


class AttentionSpec(msgspec.Struct, frozen=True):
    """Attention of heads over cached keys and values.

    window, chunk, soft_cap: as in PagedAttention. sinks: each head has a logit for nothing. alibi: the largest exponent
    of the slopes of ALiBi. gated: each column of the output is multiplied with the sigmoid of its own projection.
    value_dim: the width of a value where it is not head_dim. value_scale: a factor of values. is_whole: of an encoder,
    which runs each sequence whole and keeps nothing: a token sees those after it too, with a window half of it on each
    side. value_norm: of each head's values. values_are_keys: values are what `k` projects, before its norm and
    rotation; there is no `v`. kv_layer: the earlier layer whose keys and values it reads; it has none of its own, and
    no cache. keeps_all: its cache keeps the tokens that its window or chunk has left, as one without a window does.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    query_key_norm: QueryKeyNorm | None = None
    value_dim: int | None = None
    value_scale: float = 1.0
    chunk: int | None = None
    alibi: float | None = None
    sinks: bool = False
    gated: bool = False
    temperature: Temperature | None = None
    is_whole: bool = False
    position_bias: PositionBias | None = None  # of a layer that is_whole
    value_norm: NormSpec | None = None
    values_are_keys: bool = False
    kv_layer: int | None = None
    keeps_all: bool = False


class LatentAttentionSpec(msgspec.Struct, frozen=True):
    """Multi-head latent attention (DeepSeek V2, arXiv:2405.04434), in its absorbed form.

    A token keeps a latent of kv_rank numbers, from which each head's key (nope_dim) and value (value_dim) are linear
    maps, and rope_dim rotated numbers that all heads add to their keys. Queries come from a latent of q_rank numbers,
    or with None from the input. Its weights are `q_a`, `q_a_norm`, `q_nope` and `q_rope` (of each head), `kv_a`,
    `kv_a_norm`, `k_up` (for each head [kv_rank, nope_dim]), `v_up` (for each head [value_dim, kv_rank]), `o`.

    bias: of `q_a` and `kv_a`.
    """

    num_heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int | None
    scale: float
    rope: RopeSpec | None
    norm_eps: float
    bias: bool = False
    out_bias: bool = False


class FeedForwardSpec(msgspec.Struct, frozen=True):
    """A block of two or three matrices. gate_scale: a factor of the gate before its activation. down_scale: of the
    vectors that `down` reads. gate_deviations: only what is so many standard deviations above the gate's mean stays
    (GaussianTopK), before its activation. A learned activation is one of a block without a gate; its numbers
    (program.operators.Activation) are the weights `activation.alpha_p` and so on, [1] each."""

    intermediate_size: int
    activation: ActivationKind | LearnedActivationKind
    gated: bool = True
    bias: bool = False
    gate_scale: float = 1.0
    down_scale: float = 1.0
    down_bias: bool | None = None  # None: as `bias`
    gate_deviations: float | None = None

    def __post_init__(self) -> None:
        if self.gated and self.activation == "xielu":
            raise ValueError("a gate has no learned activation")


class RoutingSpec(msgspec.Struct, frozen=True):
    """The choice and the weights of a token's experts; the words are those of program.routing.ChooseExperts.

    expert_scale: a factor is multiplied with that of its expert in `router.expert_scale`. norm: the router reads a norm
    of the residual stream, `router.norm`, in place of the input of the experts.
    """

    scoring: Scoring = "softmax"
    correction: bool = False
    bias: bool = False  # of the router's own logits
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    group_scoring: GroupScoring = "top2"
    expert_scale: bool = False
    norm: NormSpec | None = None
    jitter: float = 0.0


class ExpertsSpec(msgspec.Struct, frozen=True):
    """A feed-forward of `num_experts` blocks of `width`, of which a token goes through `num_chosen`.

    shared: a block for all tokens, beside the chosen ones; with shared_gate times the sigmoid of a number a token.
    norm: the experts read a norm of the residual stream of their own, `experts_norm`, and their sum and the output of
    the shared block are normed before they are added, `post_experts_norm` and `post_shared_norm`.
    latent_size: experts read and give vectors of this size, made by the matrix `latent_in` and undone by `latent_out`.
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
    latent_size: int | None = None
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    weigh_input: bool = False
    norm: NormSpec | None = None


class ResidualSpec(msgspec.Struct, frozen=True):
    """Where the norms of a layer stand, and how its two blocks add to the residual stream x.

    pre: x += f(norm(x)). output: x += norm(f(x)). sandwich: x += norm(f(norm(x))). post: x = norm(x + f(x)).
    bare_mixer: the mixer reads x without a norm before it; with `pre` alone.
    parallel: both blocks read the x before the layer, and their sum is added; with `pre` alone. one_norm: they read
    one norm of it, which is `attention_norm`. multiplier: of the output of a block. scaled: x is multiplied with the
    number `residual_scale` at the end of the layer.
    """

    norms: Literal["pre", "output", "sandwich", "post"] = "pre"
    parallel: bool = False
    one_norm: bool = False
    multiplier: float = 1.0
    bare_mixer: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        if (self.parallel and self.norms != "pre") or (self.one_norm and not self.parallel):
            raise ValueError("parallel blocks have norms before them alone, and only they share one")
        if self.norms == "output" and self.multiplier != 1.0:
            raise ValueError("blocks whose output is normed have no multiplier")


class ParallelSpec(msgspec.Struct, frozen=True):
    """Attention and a recurrent mixer that read one norm, each with a factor; their outputs are added (Falcon-H1)."""

    attention: AttentionSpec
    recurrent: RecurrentSpec
    attention_scale: float = 1.0
    recurrent_scale: float = 1.0


Mixer = AttentionSpec | LatentAttentionSpec | RecurrentSpec | ParallelSpec
FeedForward = FeedForwardSpec | ExpertsSpec


class SharedBlockSpec(msgspec.Struct, frozen=True):
    """A block of attention and a feed-forward whose weights several layers have in common (Zamba 2, arXiv:2411.15242).

    It reads the norm of the residual stream x beside the embeddings, 2 D columns. Its output, through a matrix of each
    layer, is added to what the layer's mixer reads: the mixer reads norm(x + shared_out(block(x, embeddings))). Each
    layer adds products of its own of two matrices to the block's: to gate and up, and with adapts_attention to q, k, v.

    Weights of block `number` are under `shared.<number>.`: `attention_norm` [2 D], `q`, `k`, `v`, `o`,
    `feed_forward_norm`, `gate`, `up`, `down`. Those of a layer: `shared_out` [D, D], `adapter.feed_forward`
    [adapter_rank, D], `adapter.gate`, `adapter.up`, and for each of q, k and v `adapter.<name>.low` [adapter_rank, 2 D]
    and `adapter.<name>`.
    """

    number: int
    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    adapter_rank: int
    adapts_attention: bool = False


class LayerSpec(msgspec.Struct, frozen=True):
    """A mixer of tokens, then a feed-forward; a layer may lack one of them, and then has no norm for it either.

    shared: a block before the mixer, which has a norm before it alone.
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    residual: ResidualSpec = ResidualSpec()
    shared: SharedBlockSpec | None = None

    def __post_init__(self) -> None:
        if self.shared is not None and (self.mixer is None or self.residual != ResidualSpec()):
            raise ValueError("a shared block stands before a mixer that a norm alone precedes")
        if self.mixer is None and self.feed_forward is None:
            raise ValueError("a layer has a mixer, a feed-forward, or both")
        if self.residual.parallel and (self.mixer is None or self.feed_forward is None):
            raise ValueError("only two blocks can be parallel")


class HeadMap(msgspec.Struct, frozen=True):
    """A linear map of pooled rows, then an activation of its result, then a norm. Its weights are always f32.

    weights: logical names of parts of equal size, one below the other. The norm's vectors are `<first part>.norm`.
    """

    weights: tuple[str, ...]
    out_features: int
    bias: bool = False
    activation: ActivationKind | Literal["tanh"] | None = None
    norm: NormSpec | None = None


class PoolingHead(msgspec.Struct, frozen=True):
    """What a program makes of a sequence in place of logits: rows by `kind`, through the maps in their order."""

    kind: PoolingKind
    maps: tuple[HeadMap, ...] = ()


class DecoderSpec(msgspec.Struct, frozen=True):
    """A decoder as data. tie_embeddings: the head is the embedding table, and `weights` has no `head`. head_bias: the
    output head has a bias; a tied head has none.

    pooling: the head of a model that pools, in place of the output head. embedding_norm: of the sum of the embeddings.
    has_token_types: tokens have types (segments), whose vectors are added to their embeddings. per_layer: inputs of
    each layer. streams: further residual streams. keeps: what a drafting head reads of it. draft: it is such a head,
    or a stage, which has no layers. takes_embeds: a step may give embeddings in place of tokens; scales_embeds: these
    are scaled as those of tokens are, and have not the scale yet.
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    weights: dict[str, WeightSource]
    embedding_scale: float = 1.0
    learned_positions: bool = False
    position_offset: int = 0
    tie_embeddings: bool = False
    head_bias: bool = False
    logit_soft_cap: float | None = None
    pooling: PoolingHead | None = None
    has_final_norm: bool = True
    embedding_norm: NormSpec | None = None
    has_token_types: bool = False
    per_layer: PerLayerSpec | None = None
    streams: StreamsSpec | None = None
    keeps: KeptStates | None = None
    draft: DraftHeadSpec | StageSpec | None = None
    takes_embeds: bool = False
    scales_embeds: bool = True
    ignored_tensors: tuple[str, ...] = ()  # fnmatch patterns of checkpoint tensors that are not weights of it

    @property
    def given_scale(self) -> float | None:
        """The factor of embeddings that a step gives in place of tokens; None: it gives none."""
        if not self.takes_embeds:
            return None
        return self.embedding_scale if self.scales_embeds else 1.0
