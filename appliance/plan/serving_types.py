"""The front ends' part of a plan: one record for each reader. A change here leaves the engine hash alone."""

from typing import Literal

import msgspec

from appliance.catalog.degradations import Strictness


class TlsPlan(msgspec.Struct, frozen=True, kw_only=True):
    certfile: str
    keyfile: str
    ca_certs: str | None = None
    client_certificates: Literal["none", "optional", "required"] = "none"
    refresh: bool = False  # read the files again when they change


class ListenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the server's socket."""

    host: str
    port: int
    uds: str | None = None  # a Unix socket in place of host and port
    tls: TlsPlan | None = None

    @property
    def scheme(self) -> Literal["http", "https"]:
        return "http" if self.tls is None else "https"


class CorsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Web pages of other origins that may call; no origins is no CORS."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False


class HttpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What every HTTP request passes before its route is found."""

    root_path: str
    keep_alive_s: float
    request_id_headers: bool
    allowed_hosts: tuple[str, ...] = ()  # names that Host may have; empty is any
    cors: CorsPlan = CorsPlan()
    middleware: tuple[str, ...] = ()  # dotted paths, the first is outermost


class RoutesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The routes that are served."""

    apis: tuple[str, ...]
    metrics: bool
    docs: bool
    offline_docs: bool = False
    page: bool = True
    tokenizer_info: bool = False
    server_load_tracking: bool
    runtime_adapters: bool = False  # that load and unload adapters
    sleep: bool = False  # that put the engine to sleep and wake it
    profiler_dir: str | None = None  # where traces of steps are written; None: the routes for them are not served
    weight_update_paths: tuple[str, ...] = ()  # below which checkpoints lie that requests may have loaded


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one API key may do; None is no limit."""

    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers together
    max_concurrency: int | None = None  # requests that are open at once
    priority: int = 0  # added to a request's own; lower is sooner


class AuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The API keys, and how far their holders are kept apart."""

    key_hashes: dict[str, str]  # key name -> "sha256:<hex>"
    key_rules: dict[str, KeyPlan] = {}  # key name -> rules; a key that is not here has none
    keys_file: str | None = None  # with more keys; it is read again when it changes
    isolate_caches: bool = False  # no key sees what another key's prompts left in the prefix cache

    @property
    def has_keys(self) -> bool:
        """Requests need a key. Without planned keys and without a file of keys, anyone may call."""
        return bool(self.key_hashes) or self.keys_file is not None


class LimitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection or request may use."""

    max_body_bytes: int
    max_header_bytes: int
    max_headers: int
    max_n: int
    max_connections: int = 4096
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 30.0


class LogsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the server and the engine write to their logs."""

    level: str
    config_file: str | None = None  # JSON for logging.config.dictConfig, in server and engine
    log_requests: bool
    log_outputs: bool = False
    max_log_len: int | None  # characters of a prompt or answer
    access_log: bool = False


class ExportersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """names: dotted paths of functions that are given all figures at every interval."""

    names: tuple[str, ...] = ()
    interval_s: float = 15.0


class StorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for clients: files, batches and stored responses."""

    dir: str | None = None  # None: beside the server's state
    max_bytes: int = 1 << 30
    max_files: int = 10_000
    max_batches: int = 1_000
    lifetime_s: float = 30 * 86400.0
    max_responses: int = 1_000
    max_response_bytes: int = 64 << 20


class RequestsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the bodies of requests become prompts."""

    unknown_fields: Strictness = "error"
    truncated_prompts: Strictness = "allow"  # what truncate_prompt_tokens may do
    trust_request_chat_template: bool = False
    parse_message_tokens: bool = False  # a message that spells a control token says it


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


class ToolServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A server of tools: a command, or a url. Texts have their `${...}` as they were written, so that no secret is in a
    plan; they are filled in when the server is started."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    folder: str = ""  # where relative files of `${file:...}` begin
    allowed_tools: tuple[str, ...] | None = None  # None: all
    timeout_s: float
    max_result_bytes: int
    max_calls: int  # of one response


class AnswersPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What answers say beside their text."""

    response_role: str = "assistant"
    force_include_usage: bool
    prompt_tokens_details: bool
    draft_metrics: bool = False  # what became of the drafts of a request, beside its usage
    return_tokens_as_token_ids: bool


class TracesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry over OTLP/HTTP. A caller's traceparent decides for its own requests, the ratio for others."""

    endpoint: str  # with its path
    sampling_ratio: float
    service_name: str
    parts: tuple[Literal["scheduler", "forward", "execute"], ...] = ()  # of the engine, whose seconds spans have


class AdapterRulesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may do with adapters, beside naming those that are served.

    paths: the folders below which they may load from; none is any. resolver_dir, resolver: where an adapter is looked
    for that is not served, a folder and a dotted path.
    """

    paths: tuple[str, ...] = ()
    resolver_dir: str | None = None
    resolver: str | None = None
    request_scale: bool = False

    @property
    def resolves(self) -> bool:
        """Unknown names are looked for."""
        return self.resolver_dir is not None or self.resolver is not None


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that an engine answers before it takes over from another, which the plan's targets judge."""

    num_prompts: int
    max_concurrency: int
    input_len: int
    output_len: int


class ServingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Read by the front ends, each its own record; a change here is live and leaves the engine hash alone."""

    listen: ListenPlan
    http: HttpPlan
    routes: RoutesPlan
    auth: AuthPlan
    limits: LimitsPlan
    logs: LogsPlan
    store: StorePlan
    requests: RequestsPlan
    structured: StructuredPlan
    parsers: ParsersPlan
    tool_servers: tuple[ToolServerPlan, ...] = ()
    answers: AnswersPlan
    adapters: AdapterRulesPlan = AdapterRulesPlan()
    traces: TracesPlan | None = None
    exporters: ExportersPlan = ExportersPlan()
    api_servers: int = 1  # processes that answer HTTP
    has_engine_inside: bool = False  # the engine is a thread of the server's process
    shutdown_timeout_s: float
    shed_above_s: float | None = None  # a longer wait for the first token is refused with 429; None: none is
    gate: GatePlan | None = None  # before a new generation takes over; None: readiness is enough

    @property
    def has_detailed_traces(self) -> bool:
        """The engine measures its parts for each request."""
        return self.traces is not None and bool(self.traces.parts)


class RestartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When an engine that failed is started again, and after what silence it has failed."""

    policy: Literal["on-failure", "never"]
    max_restarts: int
    window_s: float
    backoff_s: float
    heartbeat_timeout_s: float
