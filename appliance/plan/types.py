"""EnginePlan: what will run. Frozen, complete and hashable; nothing here can say "auto" or "unset".

The engine, the server and the benchmarks read plans, never specs. None in a field is a decision ("no limit"), not a
gap.
"""

from typing import Any, Literal

import msgspec

from appliance.catalog.degradations import DegradationKind, Strictness

PLAN_VERSION = 1

DeviceKind = Literal["cpu", "cuda", "rocm"]
Task = Literal["generate", "embed", "classify", "score", "transcribe"]
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


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # local folder or .gguf
    format: str
    architecture: str
    header_sha256: str
    served_names: tuple[str, ...]  # the first is reported
    task: Task
    max_model_len: int
    seed: int
    tokenizer_path: str
    skip_tokenizer: bool
    chat_template: str | None  # the text; None when there is none
    chat_template_content_format: Literal["string", "openai"]
    default_sampling: dict[str, Any]  # from generation_config, field names of SamplingParams
    max_logprobs: int
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
    logits_processor_pattern: str | None = None  # of names that requests may bring
    config_overrides: dict[str, Any] = {}  # merged over the checkpoint's config before the decoder is built
    show_load_progress: bool = True
    experts: ExpertsPlan | None = None


class LoadingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How packed weights are kept between starts."""

    keep_packed: bool = False
    packed_dir: str | None = None  # None: in the cache folder of the user
    packed_max_bytes: int = 0
    packed_access: Literal["map", "copy"] = "map"
    checkpoint_sha256: str | None = None  # checked before planning; None: the files' sizes and times stand for them


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
    kv_dtype: Literal["f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2"]


class KernelChoice(msgspec.Struct, frozen=True, kw_only=True):
    operator: str
    implementation: str
    refused: dict[str, str]  # other candidate -> reason


class KernelPlan(msgspec.Struct, frozen=True, kw_only=True):
    kernel_set: str  # "cpu-avx2", "reference", "cuda-triton"
    support: Literal["tested here", "compiled here", "untested"]
    choices: tuple[KernelChoice, ...]
    num_threads: int
    screen_logits: bool = False  # with a copy of the output head in fewer bits


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # weights, logit_screen, kv_cache, activations, workspace, graphs, lora, draft, margin
    size_bytes: int
    formula: str


class KvGroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose cache has one shape and one reach. All groups have the same blocks in this version."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # tokens; None is full attention
    bytes_per_token: int  # of all layers of the group


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    device_bytes: int = 0  # of the whole device
    budget_bytes: int
    items: tuple[MemoryItem, ...]
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    kv_groups: tuple[KvGroupPlan, ...] = ()
    num_tokens: int  # that fit the cache
    num_full_sequences: float  # of max_model_len that fit


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    num_blocks: int
    prefault_blocks: int = 0  # made resident ahead of their use, by an idle engine
    prefix_caching: bool
    hash_algorithm: Literal["sha256", "builtin"]


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
    late_share: float = 0.0  # of the gaps between tokens, how many may be longer than that for prompts that wait


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    tensor: int
    pipeline: int
    data: int
    expert: bool


class RestartPlan(msgspec.Struct, frozen=True, kw_only=True):
    policy: Literal["on-failure", "never"]
    max_restarts: int
    window_s: float
    backoff_s: float
    heartbeat_timeout_s: float


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one API key may do; None is no limit."""

    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers together
    max_concurrency: int | None = None  # requests that are open at once
    priority: int = 0  # added to a request's own; lower is sooner


class TlsPlan(msgspec.Struct, frozen=True, kw_only=True):
    certfile: str
    keyfile: str
    ca_certs: str | None = None
    client_certificates: Literal["none", "optional", "required"] = "none"
    refresh: bool = False  # read the files again when they change


class FrontPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The transport, who may come in, and what people see."""

    uds: str | None = None  # a Unix socket in place of host and port
    tls: TlsPlan | None = None
    allowed_hosts: tuple[str, ...] = ()  # names that Host may have; empty is any
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0
    max_connections: int = 4096
    cors_methods: tuple[str, ...] = ("*",)
    cors_headers: tuple[str, ...] = ("*",)
    cors_credentials: bool = False
    middleware: tuple[str, ...] = ()  # dotted paths, the first is outermost
    page: bool = True
    offline_docs: bool = False
    access_log: bool = False
    log_outputs: bool = False
    log_config_file: str | None = None  # JSON for logging.config.dictConfig, in server and engine
    keys_file: str | None = None
    key_rules: dict[str, KeyPlan] = {}  # key name -> rules; a key that is not here has none
    api_servers: int = 1  # processes that answer HTTP
    isolate_caches: bool = False  # no key sees what another key's prompts left in the prefix cache


class TracesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry over OTLP/HTTP. A caller's traceparent decides for its own requests, the ratio for others."""

    endpoint: str  # with its path
    sampling_ratio: float
    service_name: str


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that an engine answers before it takes over from another, which the plan's targets judge."""

    num_prompts: int
    max_concurrency: int
    input_len: int
    output_len: int


class StructuredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Structured output: how constraints of requests are read where these do not say."""

    backend: Literal["guidance"] | None = "guidance"  # None refuses every constraint
    at_start: bool = False  # it is loaded with the engine, not at the first constraint
    any_whitespace: bool = True  # JSON may have white space between its parts
    additional_properties: bool = True  # a schema without additionalProperties allows them


class ParsersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are read. Paths are "module:NAME" of a ToolFormat and a ReasoningFormat; None is none."""

    tools: str | None = None
    reasoning: str | None = None
    auto_tool_choice: bool = False  # the model may decide to call
    exclude_tools_when_none: bool = False  # a request that forbids calls gets no tools into its prompt


class ServingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Read by the front ends; a change here is live and leaves the engine hash alone."""

    host: str
    port: int
    root_path: str
    apis: tuple[str, ...]
    key_hashes: dict[str, str]  # key name -> "sha256:<hex>"; empty is no authentication
    max_body_bytes: int
    max_header_bytes: int
    max_headers: int
    max_n: int
    keep_alive_s: float
    shutdown_timeout_s: float
    cors_origins: tuple[str, ...]
    request_id_headers: bool
    enable_docs: bool
    server_load_tracking: bool
    force_include_usage: bool
    prompt_tokens_details: bool
    return_tokens_as_token_ids: bool
    log_level: str
    log_requests: bool
    max_log_len: int | None
    metrics: bool
    response_role: str = "assistant"
    structured: StructuredPlan = StructuredPlan()
    parsers: ParsersPlan = ParsersPlan()
    front: FrontPlan = FrontPlan()
    trust_request_chat_template: bool = False
    parse_message_tokens: bool = False  # a message that spells a control token says it
    tokenizer_info: bool = False
    shed_above_s: float | None = None  # a longer wait for the first token is refused with 429; None: none is
    gate: GatePlan | None = None  # before a new generation takes over; None: readiness is enough
    unknown_fields: Strictness = "error"  # of request bodies
    truncated_prompts: Strictness = "allow"  # what truncate_prompt_tokens may do
    traces: TracesPlan | None = None
    store_dir: str | None = None  # None: beside the server's state
    store_max_bytes: int = 1 << 30
    store_max_files: int = 10_000
    store_max_batches: int = 1_000
    store_lifetime_s: float = 30 * 86400.0
    max_responses: int = 1_000
    max_response_bytes: int = 64 << 20


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
    memory: tuple[MemoryPlan, ...]
    cache: CachePlan
    scheduler: SchedulerPlan
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
    serving_sha256: str  # over everything that can change live
