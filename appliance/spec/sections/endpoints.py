"""`endpoints`: what listens, who may call, and how much a call may ask."""

from typing import ClassVar, Literal

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import DottedPath, Duration, KeyHash, Name, Port, PositiveInt, Size, Text

Api = Literal["openai", "anthropic", "cohere", "jina", "sagemaker", "responses", "inference"]


class HttpSection(Section):
    """The listener."""

    doc: ClassVar[str] = "The listener and its switches."

    host: Text = field("127.0.0.1", "Address to bind. Anything but loopback needs keys in endpoints.auth.")
    port: Port = field(8000, "Port to bind.")
    uds: Text | None = field(None, "A Unix socket in place of host and port.", built=False)
    root_path: str = field("", "Path prefix behind a proxy.", apply="live")
    keep_alive: Duration = field(5.0, "How long an idle connection stays open.", apply="live")
    api_server_count: PositiveInt = field(1, "API processes.", built_values=(1,))
    disable_frontend_multiprocessing: bool = field(False, "API and engine in one process.", built=False)
    middleware: list[DottedPath] = field([], "ASGI middleware of your own.", built=False)
    enable_request_id_headers: bool = field(False, "Echo X-Request-Id; costs throughput.", apply="live")
    enable_docs: bool = field(
        True, "OpenAPI schema and documentation pages.", apply="live", vllm="disable_fastapi_docs"
    )
    enable_offline_docs: bool = field(False, "Documentation pages that need no internet.", built=False, apply="live")
    enable_server_load_tracking: bool = field(False, "Count requests for /load.", apply="live")
    enable_tokenizer_info_endpoint: bool = field(
        False, "An endpoint with the tokenizer's configuration; may show templates.", built=False, apply="live"
    )


class ResponsesSection(Section):
    """What replies hold."""

    doc: ClassVar[str] = "What replies hold beyond what was asked for."

    enable_force_include_usage: bool = field(False, "Usage on every reply.", apply="live")
    enable_prompt_tokens_details: bool = field(False, "prompt_tokens_details in usage.", apply="live")
    return_tokens_as_token_ids: bool = field(False, "Tokens of log-probabilities as token_id:{id}.", apply="live")


class KeySection(Section):
    """One API key."""

    doc: ClassVar[str] = "One API key, stored as its digest."

    name: Name = field(REQUIRED, "Whose key it is; appears in logs and metrics.", apply="live")
    hash: KeyHash = field(REQUIRED, 'sha256:<hex> of the key: printf %s "$KEY" | sha256sum', apply="live")


class AuthSection(Section):
    """Who may call."""

    doc: ClassVar[str] = "Who may call. Any of the keys opens the API; no keys is an open API."

    keys: list[KeySection] = field([], "API keys.", apply="live", vllm="api_key")
    allow_public_without_keys: bool = field(
        False, "I know that anyone who reaches this address may use the model.", apply="live"
    )


class LimitsSection(Section):
    """How much one call may ask."""

    doc: ClassVar[str] = "How much one call may ask; more is answered 4xx."

    max_body_bytes: Size = field(8 * 2**20, "Largest request body.", apply="live", vllm="h11_max_incomplete_event_size")
    max_header_bytes: Size = field(64 * 2**10, "Largest set of request headers.", apply="live")
    max_headers: PositiveInt = field(256, "Most request headers.", apply="live", vllm="h11_max_header_count")
    max_n: PositiveInt = field(64, "Most sequences of one request.", apply="live")


class TlsSection(Section):
    """Certificates."""

    doc: ClassVar[str] = "Certificates of the listener."

    keyfile: Text | None = field(None, "Private key.", vllm="ssl_keyfile")
    certfile: Text | None = field(None, "Certificate chain.", vllm="ssl_certfile")
    ca_certs: Text | None = field(None, "Authorities of client certificates.", vllm="ssl_ca_certs")
    cert_reqs: Literal["none", "optional", "required"] = field(
        "none", "Whether clients need certificates.", vllm="ssl_cert_reqs"
    )
    enable_refresh: bool = field(False, "Read the files again when they change.", vllm="enable_ssl_refresh")


class CorsSection(Section):
    """Browsers of other origins."""

    doc: ClassVar[str] = "Which web pages may call from a browser. None unless listed."

    allowed_origins: list[Text] = field([], "Origins, or *.", apply="live")
    allowed_methods: list[Text] = field(["*"], "Methods, or *.", apply="live", built=False)
    allowed_headers: list[Text] = field(["*"], "Headers, or *.", apply="live", built=False)
    allow_credentials: bool = field(False, "Cookies and authorization headers.", apply="live", built=False)


class EndpointsSection(Section):
    """The HTTP face."""

    doc: ClassVar[str] = "The HTTP face of the deployment."

    http: HttpSection = field(HttpSection, "The listener.")
    apis: list[Api] = field(["openai"], "Families of routes.", built_values=(["openai"],), apply="live")
    responses: ResponsesSection = field(ResponsesSection, "What replies hold.")
    auth: AuthSection = field(AuthSection, "Who may call.")
    limits: LimitsSection = field(LimitsSection, "How much a call may ask.")
    tls: TlsSection | None = field(None, "Certificates.", built=False)
    cors: CorsSection = field(CorsSection, "Browsers of other origins.")
