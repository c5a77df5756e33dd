"""EnginePlan: what will run. Frozen, complete and hashable; nothing here can say "auto" or "unset".

The engine, the server and the benchmarks read plans, never specs. None in a field is a decision ("no limit").
"""

from typing import Any, Literal

import msgspec

from appliance.catalog.architectures import Architecture
from appliance.catalog.degradations import DegradationKind
from appliance.catalog.pooling import PoolingChoice, PoolingKind, PoolingTask
from appliance.catalog.tokenizer_modes import TokenizerMode
from appliance.checkpoint.config_choice import OWN, ConfigChoice
from appliance.checkpoint.loader_choice import NO_LOADER, LoaderChoice
from appliance.checkpoint.modelling import CodeFile
from appliance.plan.loading_types import LoadingPlan
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.serving_types import RestartPlan, ServingPlan

PLAN_VERSION = 1
SCRIPTED = "scripted"  # the kernel set and the model format of plans in tests; no planner chooses them

DeviceKind = Literal["cpu", "cuda", "rocm"]
Task = Literal["generate", "embed", "classify", "score", "transcribe"]
VectorActivation = Literal["none", "normalize", "sigmoid", "softmax"]
GraphMode = Literal["NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
DraftMethod = Literal[
    "ngram", "suffix", "custom_class", "draft_model", "mtp", "eagle", "eagle3", "medusa", "mlp_speculator"
]  # fmt: skip
STAGE_METHODS: tuple[DraftMethod, ...] = ("medusa", "mlp_speculator")  # heads without layers, which keep no cache
HEAD_METHODS: tuple[DraftMethod, ...] = ("mtp", "eagle", "eagle3", *STAGE_METHODS)  # that read states of the model
MODEL_METHODS: tuple[DraftMethod, ...] = ("draft_model", *HEAD_METHODS)  # that take time, between two steps
HashAlgorithm = Literal["sha256", "sha256_cbor", "builtin"]
SourceKind = Literal["spec", "override", "profile", "model", "hardware", "computed", "default"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Why one planned value is what it is."""

    path: str  # of the plan: "cache.block_size"
    value: Any
    source: SourceKind
    reason: str


class ExpertsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a model: all of them are in memory, and a token reads those that it chooses."""

    num_experts: int  # in each layer that has them
    num_chosen: int  # for a token
    num_layers: int
    size_bytes: int  # of all layers
    bytes_per_token: int


class ModellingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Modelling code that is not ours and runs the model, over our cache, scheduler and sampler."""

    origin: Literal["transformers", "checkpoint"]
    transformers_version: str
    model_class: str  # of transformers, or `module.Class` of a file
    config_class: str | None
    code_path: str | None  # the folder of the checkpoint's own code
    code_revision: str | None
    files: tuple[CodeFile, ...]  # that run; other content is refused at the start


class PoolingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a model pools, and what is made of its vectors.

    label_token_ids: the scores are the logits of these tokens, of which the last stands for "yes". step_tag_id: of the
    rows of all tokens, those of this token are answered. logit_mean, logit_sigma: what is taken from each logit of a
    class, and by what it is divided then. max_embed_len: the tokens of the longest input, where one that is longer than
    the context runs in chunks whose vectors have one mean; None where none does.
    matryoshka_dimensions: lengths to which vectors may be cut, none for any length; None if they may not be cut.
    """

    task: PoolingTask
    kind: PoolingKind
    activation: VectorActivation
    width: int = 0  # numbers of a vector
    label_token_ids: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    matryoshka_dimensions: tuple[int, ...] | None = None
    step_tag_id: int | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    max_embed_len: int | None = None
    prompts: dict[str, str] = {}  # texts before an input, by name
    default_prompt: str | None = None  # the name of the one used where none is asked for
    is_causal: bool = False
    has_token_types: bool = False
    runs_whole: bool = False  # all tokens of a prompt run in one step

    @property
    def choice(self) -> PoolingChoice:
        """The part by which the program is described."""
        return PoolingChoice(task=self.task, kind=self.kind, label_token_ids=self.label_token_ids)


RANDOM_WEIGHTS = "random numbers, as load_format is dummy: memory and speed are real, and answers mean nothing"


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # local folder or .gguf
    format: str
    architecture: str
    header_sha256: str
    family: Architecture | None = None  # of another package; None: the catalogue's, or modelling code runs it
    served_names: tuple[str, ...]  # the first is reported
    task: Task
    max_model_len: int
    seed: int
    tokenizer_path: str
    skip_tokenizer: bool
    tokenizer_mode: TokenizerMode = "fast"
    tokenizer_cls: str | None = None  # a dotted path, of the mode custom
    chat_template: str | None  # the text; None when there is none
    chat_template_content_format: Literal["string", "openai"]
    default_sampling: dict[str, Any]  # from generation_config, field names of SamplingParams
    max_logprobs: int
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
    logits_processors: tuple[str, ...] = ()  # dotted paths of those that every request has
    logits_processor_pattern: str | None = None  # of names that requests may bring
    logits_processor_timeout_s: float = 5.0  # of one call
    loader: LoaderChoice = NO_LOADER  # what reads the tensors, beside their format
    config: ConfigChoice = OWN  # the config that the checkpoint is read with
    config_overrides: dict[str, Any] = {}  # merged over the checkpoint's config before the decoder is built
    show_load_progress: bool = True
    experts: ExpertsPlan | None = None
    modelling: ModellingPlan | None = None  # None: our own decoder runs the model
    pooling: PoolingPlan | None = None  # None: it generates
    sleep_mode: bool = False  # it may give its memory back on demand
    embeds_width: int = 0  # of embeddings that prompts may have in place of token ids; 0: they may have none
    kept_layers: tuple[int, ...] | None = None  # what a drafting head reads (KeptStates); None: nothing is kept

    @property
    def takes_embeds(self) -> bool:
        return self.embeds_width > 0

    @property
    def pooling_choice(self) -> PoolingChoice | None:
        """The part of `pooling` by which the program is described."""
        return None if self.pooling is None else self.pooling.choice


class WeightPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How checkpoint tensors of one storage and role become kernel weights."""

    storage: str
    role: Literal["linear", "embedding", "other"]  # of the weights in the program; one plan a storage and role
    layout: str  # a kernels.layout.Layout value
    group_size: int | None  # None: dense, or int8 with one scale a row
    sub_group_size: int | None = None  # of groups whose sub-groups have factors of the scale
    num_tensors: int
    stored_bytes: int
    planned_bytes: int
    error: str  # "exact", or the stated bound


class PrecisionPlan(msgspec.Struct, frozen=True, kw_only=True):
    weights: tuple[WeightPlan, ...]
    activations: Literal["f32", "bf16", "f16"]
    quantize_activations: bool
    kv_dtype: Literal["f32", "bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"]


class KernelChoice(msgspec.Struct, frozen=True, kw_only=True):
    operator: str
    implementation: str
    refused: dict[str, str]  # other candidate -> reason


class KernelPlan(msgspec.Struct, frozen=True, kw_only=True):
    kernel_set: str  # "cpu-avx2", "reference", "cuda"
    support: Literal["tested here", "compiled here", "untested"]
    choices: tuple[KernelChoice, ...]
    num_threads: int
    batch_invariant: bool = False  # rows round alike in every batch
    share_prefixes: bool = False  # decodes read a prefix that they share once for all (cascade attention)
    screen_logits: bool = False  # with a copy of the output head in fewer bits
    lock_memory: bool = False  # weights and caches are never paged out
    cpus: tuple[tuple[int, ...], ...] = ()  # by rank of all replicas here, those of its threads
    nodes: tuple[tuple[int, ...], ...] = ()  # by rank, the NUMA nodes where it takes memory first
    streamed_layers: tuple[int, ...] = ()  # whose matrices stay in host memory, and are copied to the device each step
    cache_dir: str | None = None  # of compiled kernels; None: where the environment says, or in the cache folder


class GraphsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that run as graphs, padded to a size. They are captured while the engine serves.

    decode_sizes: sequences of steps in which each has one new token; such a step is one graph. token_sizes: new tokens
    of other steps, whose graphs lie between attention operators.
    """

    mode: GraphMode = "NONE"
    decode_sizes: tuple[int, ...] = ()
    token_sizes: tuple[int, ...] = ()
    max_seq_len: int | None = None  # steps with a longer sequence run without graphs; None: graphs hold for all

    @property
    def num_graphs(self) -> int:
        """The sizes of both kinds."""
        return len(self.decode_sizes) + len(self.token_sizes)


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    # weights, logit_screen, kv_cache, states, swap, activations, workspace, temporaries, graphs, adapters, drafts,
    # draft_..., context, collectives, margin
    name: str
    size_bytes: int
    formula: str


class KvGroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one group, which share block tables, whose caches have one shape."""

    group: int = 0  # its number; where layers of a group differ in shape, it has an entry for each shape
    num_layers: int
    num_kv_heads: int
    head_dim: int  # of keys
    window: int | None  # tokens; None is full attention
    bytes_per_token: int  # of all these layers
    value_dim: int | None = None  # of values, where that is another width; 0 if they are columns of the keys


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    device_bytes: int = 0  # of the whole device
    budget_bytes: int
    items: tuple[MemoryItem, ...]
    host_items: tuple[MemoryItem, ...] = ()  # of the host's memory, for a device that has its own
    kv_bytes_per_token: int  # of all layers, while no window has left the token
    kv_bytes_per_block: int  # of one group's layers
    kv_groups: tuple[KvGroupPlan, ...] = ()
    num_tokens: int  # that fit the cache, in sequences of max_model_len
    num_full_sequences: float  # of max_model_len that fit


class SwapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Places in host memory for the blocks and states of preempted sequences. A place holds a block, or, in a model
    without a cache of keys and values, the states of a sequence."""

    num_places: int
    place_bytes: int
    num_state_places: int  # that the recurrent states of a sequence take; 0 for a model that has none


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    num_blocks: int
    prefault_blocks: int = 0  # made resident ahead of their use, by an idle engine
    prefix_caching: bool
    hash_algorithm: HashAlgorithm
    num_snapshots: int | None = None  # of recurrent states; None for a model that has none
    swap: SwapPlan | None = None  # None: preempted sequences are computed again


class SchedulerPlan(msgspec.Struct, frozen=True, kw_only=True):
    policy: Literal["fcfs", "priority"]
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    max_waiting: int | None  # more are refused with 429
    target_step_s: float | None = None  # of a step that decodes: prompts beside it are cut to that; None: they are not
    max_num_sampled: int | None = None  # rows of logits, or pooled rows, of a step; None: max_num_seqs
    late_share: float = 0.0  # of the gaps between tokens, how many may be longer than that for prompts that wait
    delay_factor: float = 0.0  # prompts wait for so many times what the last step with a prompt took; 0: for nothing
    async_scheduling: bool = True  # a step may begin before the results of the last are handled
    scheduler_cls: str | None = None  # a policy of the operator's own, by dotted path; where it fails, `policy` decides


class DraftModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A smaller model, or a head, that drafts, with a cache of its own.

    path: of a head that the model's checkpoint brings, that of the model. num_kept_states: states of each row that wait
    until a head reads them; 0 for a model. num_states: slots of recurrent states that each row has beside its own, of a
    model that has some. vocabulary: its token ids are those of the model, or are found by the texts
    of tokens, or by a table of the head. windows: of each group of its caches. share: the bytes that its decode reads,
    of those of the model's decode. num_tokens: of one draft, at most; None: as many as are wanted. lent: weights of
    the model that a head reads as its own, by the head's names.
    """

    path: str  # local folder or .gguf
    format: str
    architecture: str
    header_sha256: str
    tokenizer_path: str
    vocabulary: Literal["same", "by_text", "by_table"]
    max_model_len: int
    max_num_batched_tokens: int
    num_blocks: int
    windows: tuple[int | None, ...]
    precision: PrecisionPlan
    share: float
    num_kept_states: int = 0
    num_states: int = 0
    num_tokens: int | None = None
    lent: dict[str, str] = {}


class SpeculationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who proposes tokens ahead, and how many of them steps may verify.

    methods: the drafters; of several the better one is asked a step. drafter: a dotted path, of the method
    custom_class. max_num_draft_tokens: of one step, over all requests; a row of logits each.
    """

    methods: tuple[DraftMethod, ...]
    drafter: str | None = None
    enabled: bool = True
    num_tokens: int  # of one draft
    max_num_draft_tokens: int
    adaptive: bool = True
    disable_by_batch_size: int | None = None
    prompt_lookup_min: int
    prompt_lookup_max: int
    suffix_max_depth: int
    suffix_max_cached_requests: int
    suffix_cache_bytes: int
    suffix_max_spec_factor: float
    suffix_min_token_prob: float
    num_draft_states: int | None = None  # slots of recurrent states after drafts; None for a model that has none
    draft_model: DraftModelPlan | None = None  # of the method draft_model


class AdapterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter that is served. sha256: over its config and all bytes of its weights."""

    name: str
    path: str  # local folder
    sha256: str
    parent: str | None = None  # what clients are told; None: the first served name
    rank: int  # the highest of its modules
    num_modules: int
    scale: float = 1.0  # of what it adds, beside its own alpha
    pinned: bool = False  # it keeps its slot
    origin: Literal["spec", "request", "lookup"] = "spec"  # who asked for it; lookup: it was found when it was named


class AdaptersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of adapters, and the adapters that are served.

    target_modules: the ends of the names of modules that may be changed; None: all linear maps of layers. also: what
    else has a place because an adapter needs it, such as the head or experts (models.adapters.kind_of). whole: the
    logical weights that may be changed by a matrix of their own shape.
    """

    max_loras: int
    max_rank: int
    dtype: Literal["f32", "bf16"]
    target_modules: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    num_modules: int  # logical weights that have a place
    max_cpu_loras: int = 0  # adapters that may be in host memory
    served: tuple[AdapterPlan, ...] = ()

    def named(self, name: str) -> AdapterPlan | None:
        """Returns the served adapter of this name."""
        return next((each for each in self.served if each.name == name), None)


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    version: int = PLAN_VERSION
    appliance_version: str
    name: str
    device: DeviceKind
    hardware: str  # facts name
    hardware_sha256: str
    profile: str
    model: ModelPlan
    loading: LoadingPlan = LoadingPlan()
    precision: PrecisionPlan
    kernels: KernelPlan
    graphs: GraphsPlan = GraphsPlan()
    memory: tuple[MemoryPlan, ...]
    cache: CachePlan
    scheduler: SchedulerPlan
    speculation: SpeculationPlan | None = None
    adapters: AdaptersPlan | None = None  # None: no place for any
    parallel: ParallelPlan
    restart: RestartPlan
    serving: ServingPlan
    slo: dict[str, float]  # seconds, by name: "ttft_p95"
    batch: dict[str, Any]
    bench: dict[str, Any]
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()  # lesser forms that strictness allowed, and what of the checkpoint is left out
    degraded: tuple[DegradationKind, ...] = ()  # their kinds, said in the header of every answer
    cannot_run: tuple[str, ...] = ()  # why this version plans it but will not run it; empty when it runs
    spec_sha256: str
    engine_sha256: str  # over everything whose change needs a restart
    adapters_sha256: str = ""  # over the adapters that are served, which a running engine changes to
    serving_sha256: str  # over everything that can change live
