"""`endpoints`: the listener, the API keys, and the limits of a call."""

from typing import ClassVar, Literal

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import Auto, DottedPath, Duration, KeyHash, ModelName, Name, Port, PositiveInt, Size, Text

Api = Literal[
    "openai", "responses", "batches", "anthropic", "sagemaker", "inference", "demo", "debug", "cohere", "jina"
]


class HttpSection(Section):
    """The listener."""

    doc: ClassVar[str] = "The listener and its switches."

    host: Text = field(
        "127.0.0.1", "Address to bind. Anything but loopback needs keys in endpoints.auth.", apply="drain"
    )
    port: Port = field(8000, "Port to bind.", apply="drain")
    uds: Text | None = field(None, "A Unix socket in place of host and port.", apply="drain")
    root_path: str = field("", "Path prefix behind a proxy.", apply="live")
    allowed_hosts: Auto[list[Text]] = field(
        "auto",
        "Names by which this server may be called, as in the Host header; *.example.com has all below it, * is any.",
        auto="loopback's names when host is loopback, so that no web page can rebind its own name to it; else any",
        apply="live",
    )
    keep_alive: Duration = field(5.0, "How long an idle connection stays open.", apply="live")
    api_server_count: PositiveInt = field(1, "API processes, on one socket and before one engine.", apply="drain")
    disable_frontend_multiprocessing: bool = field(
        False, "API and engine in one process, for debuggers: an engine that dies ends the server.", apply="drain"
    )
    middleware: list[DottedPath] = field(
        [], "ASGI middleware of your own: classes, or functions for HTTP; the first is outermost.", apply="drain"
    )
    enable_request_id_headers: bool = field(False, "Echo X-Request-Id; costs throughput.", apply="live")
    enable_docs: bool = field(
        True,
        "The OpenAPI document and its page /docs, with no outside resource.",
        apply="live",
        vllm="disable_fastapi_docs",
    )
    enable_offline_docs: bool = field(
        False, "/docs/offline: the documentation as one file to save, complete without a server.", apply="live"
    )
    enable_page: bool = field(True, "A page for people at /: chat, models, figures, the plan.", apply="live")
    enable_server_load_tracking: bool = field(False, "Count requests for /load.", apply="live")
    enable_tokenizer_info_endpoint: bool = field(
        False, "An endpoint with the tokenizer's configuration; may show templates.", apply="live"
    )


class ResponsesSection(Section):
    """The content of replies."""

    doc: ClassVar[str] = "What replies hold beyond what was asked for."

    enable_force_include_usage: bool = field(False, "Usage on every reply.", apply="live")
    enable_prompt_tokens_details: bool = field(
        True, "Usage tells how many tokens of a prompt came out of the prefix cache.", apply="live"
    )
    per_request_spec_decode_metrics: Literal["none", "summary"] = field(
        "none", "With usage, how many proposed tokens the request accepted (see speculative).", apply="live"
    )
    return_tokens_as_token_ids: bool = field(False, "Tokens of log-probabilities as token_id:{id}.", apply="live")


class KeySection(Section):
    """One API key."""

    doc: ClassVar[str] = "One API key, stored as its digest."

    name: Name = field(REQUIRED, "Whose key it is; appears in logs and metrics.", apply="live")
    hash: KeyHash = field(REQUIRED, "sha256:<hex> of the key; `appliance keys new` makes both.", apply="live")
    models: list[ModelName] | None = field(None, "Served names it may use. null is all.", apply="live")
    requests_per_minute: PositiveInt | None = field(None, "Most requests a minute.", apply="live")
    tokens_per_minute: PositiveInt | None = field(
        None, "Most tokens a minute, of prompts and answers together.", apply="live"
    )
    max_concurrency: PositiveInt | None = field(None, "Most requests open at once.", apply="live")
    priority: int = field(0, "Added to the priority of its requests; lower is sooner.", apply="live")


class AuthSection(Section):
    """The keys of clients that may call."""

    doc: ClassVar[str] = "Who may call. Any of the keys opens the API; no keys is an open API."

    keys: list[KeySection] = field([], "API keys.", apply="live", vllm="api_key")
    keys_file: Text | None = field(
        None, "JSON file with more keys, as `appliance keys new --file` writes it; read when it changes.", apply="live"
    )
    isolate_caches: bool = field(
        False, "No key gains from, or can measure, what another key left in the prefix cache.", apply="live"
    )
    allow_public_without_keys: bool = field(
        False, "I know that anyone who reaches this address may use the model.", apply="live"
    )


class LimitsSection(Section):
    """The limits of one call."""

    doc: ClassVar[str] = "How much one call may ask; more is answered 4xx."

    max_body_bytes: Size = field(8 * 2**20, "Largest request body.", apply="live", vllm="h11_max_incomplete_event_size")
    max_header_bytes: Size = field(64 * 2**10, "Largest set of request headers.", apply="live")
    max_headers: PositiveInt = field(256, "Most request headers.", apply="live", vllm="h11_max_header_count")
    max_n: PositiveInt = field(64, "Most sequences of one request.", apply="live")
    header_timeout: Duration = field(10.0, "Time in which all headers of a request must arrive.", apply="live")
    body_timeout: Duration = field(60.0, "Time in which the whole body of a request must arrive.", apply="live")
    write_timeout: Duration = field(
        30.0, "A client that leaves its answer unread for so long is given up, and its request ends.", apply="live"
    )
    max_connections: PositiveInt = field(4096, "Most open connections; more are refused.", apply="live")


class StoreSection(Section):
    """The data that the server keeps for clients."""

    doc: ClassVar[str] = "What the server keeps for its clients, each owned by the key that made it."

    dir: Text | None = field(
        None, "Folder of files and batches. Default: beside the state of the deployment.", apply="drain"
    )
    max_bytes: Size = field(2**30, "Most bytes of files, inputs and results together.", apply="drain")
    max_files: PositiveInt = field(10_000, "Most files.", apply="drain")
    max_batches: PositiveInt = field(1_000, "Most batches, ended ones included.", apply="drain")
    file_lifetime: Duration = field(30 * 86400.0, "Files and ended batches are deleted after this.", apply="drain")
    max_responses: PositiveInt = field(1_000, "Most stored responses; the oldest goes first.", apply="drain")
    max_response_bytes: Size = field(64 * 2**20, "Most bytes of stored responses.", apply="drain")


class TlsSection(Section):
    """Certificates."""

    doc: ClassVar[str] = "Certificates of the listener. They change live; turning TLS on or off drains."

    keyfile: Text | None = field(None, "Private key.", vllm="ssl_keyfile", apply="live")
    certfile: Text | None = field(None, "Certificate chain.", vllm="ssl_certfile", apply="live")
    ca_certs: Text | None = field(None, "Authorities of client certificates.", vllm="ssl_ca_certs", apply="live")
    cert_reqs: Literal["none", "optional", "required"] = field(
        "none", "Whether clients need certificates.", vllm="ssl_cert_reqs", apply="live"
    )
    enable_refresh: bool = field(
        False, "Read the files again when they change.", vllm="enable_ssl_refresh", apply="live"
    )


class CorsSection(Section):
    """Browsers of other origins."""

    doc: ClassVar[str] = "Which web pages may call from a browser. None unless listed."

    allowed_origins: list[Text] = field([], "Origins, or *.", apply="live")
    allowed_methods: list[Text] = field(["*"], "Methods, or *.", apply="live")
    allowed_headers: list[Text] = field(["*"], "Headers, or *.", apply="live")
    allow_credentials: bool = field(False, "Cookies and authorization headers.", apply="live")


class EndpointsSection(Section):
    """The HTTP face."""

    doc: ClassVar[str] = "The HTTP face of the deployment."

    http: HttpSection = field(HttpSection, "The listener.")
    apis: list[Api] = field(
        ["openai", "responses", "batches", "anthropic", "sagemaker"],
        "Families of routes: only what is listed is served. The default is what the clients of OpenAI, of Anthropic "
        "(Claude Code among them) and of SageMaker ask for; responses and batches keep what clients send in "
        "endpoints.store. batches are files and batches; inference takes and gives token ids; demo is /generate; debug "
        "profiles the engine.",
        built_values=("openai", "responses", "batches", "anthropic", "sagemaker", "inference", "demo", "debug"),
        apply="live",
    )
    responses: ResponsesSection = field(ResponsesSection, "What replies hold.")
    auth: AuthSection = field(AuthSection, "Who may call.")
    limits: LimitsSection = field(LimitsSection, "How much a call may ask.")
    store: StoreSection = field(StoreSection, "What the server keeps for clients.")
    tls: TlsSection | None = field(None, "Certificates.")
    cors: CorsSection = field(CorsSection, "Browsers of other origins.")
