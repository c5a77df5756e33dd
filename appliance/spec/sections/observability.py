"""`observability`, `slo`, `restart` and `shutdown`: logs and metrics, promised latencies, restarts, and the end."""

from typing import ClassVar, Literal

from appliance.spec.fields import ApplyClass, Section, field
from appliance.spec.scalars import (
    DottedPath,
    Duration,
    Fraction,
    HttpUrl,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Text,
)

LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]


class LogsSection(Section):
    """The logs."""

    doc: ClassVar[str] = "What is logged. Prompts and outputs are not, unless asked for."

    level: LogLevel = field("info", "Least severity that is logged.", apply="live", vllm="uvicorn_log_level")
    enable_log_requests: bool = field(False, "Log each request.", apply="live")
    enable_access_log: bool = field(
        False,
        "Log each HTTP answer: method, path, status, time, bytes, the key's name. No headers, queries or bodies.",
        apply="live",
        vllm="disable_uvicorn_access_log",
    )
    enable_log_outputs: bool = field(False, "Log generated text as well, up to max_log_len.", apply="live")
    max_log_len: NonNegativeInt | None = field(
        256, "Most characters or token ids of a prompt in the log. null is no limit.", apply="live"
    )
    log_config_file: Text | None = field(
        None,
        "A configuration of Python's logging as JSON (dictConfig), for server and engine; our loggers are appliance.*.",
        apply="drain",
    )


class MetricsSection(Section):
    """Prometheus."""

    doc: ClassVar[str] = "Prometheus metrics at /metrics."

    enabled: bool = field(True, "Serve /metrics.", apply="live", vllm="disable_log_stats")
    exporters: list[DottedPath] = field(
        [],
        "Functions of your own that get all figures at an interval; see docs/guides/plugins.md.",
        apply="drain",
    )
    export_interval: Duration = field(15.0, "Time between two calls of the exporters.", apply="drain")


class TracesSection(Section):
    """OpenTelemetry."""

    doc: ClassVar[str] = "OpenTelemetry traces of requests. Needs the extra `otel`."

    otlp_traces_endpoint: HttpUrl | None = field(
        None,
        "The collector, which takes OTLP over HTTP: http://host:4318. Without a path, /v1/traces is meant.",
        apply="live",
    )
    sampling_ratio: Fraction = field(
        1.0, "Share of the requests that are traced. A caller's traceparent decides for its own.", apply="live"
    )
    service_name: Text | None = field(None, "service.name of the spans. Default: the deployment's name.", apply="live")
    collect_detailed_traces: list[Literal["model", "worker", "all"]] = field(
        [],
        "Parts of the engine whose seconds spans have: model is the model's call, worker all of a step but its "
        "scheduling, and all is both and the scheduler.",
        apply="live",
    )


class ObservabilitySection(Section):
    """Logs, metrics, traces."""

    doc: ClassVar[str] = "Logs, metrics and traces."

    logs: LogsSection = field(LogsSection, "What is logged.")
    metrics: MetricsSection = field(MetricsSection, "Prometheus metrics.")
    traces: TracesSection | None = field(None, "OpenTelemetry traces.", apply="live")
    profiler_dir: Text | None = field(
        None,
        "Folder of traces of steps, operators and sequences, which Perfetto opens. It serves POST /start_profile and "
        "/stop_profile. They hold no text. null serves neither.",
        apply="live",
        vllm="torch_profiler_dir",
    )


def _bound(what: str, percent: int, apply: ApplyClass = "live") -> Duration | None:
    bound: Duration | None = field(None, f"{what}: {percent} of 100 are no slower.", apply=apply)
    return bound


class GateSection(Section):
    """Requests that judge a new generation."""

    doc: ClassVar[str] = (
        "Requests that a new generation answers before it takes over; one that misses a bound does not."
    )

    num_prompts: PositiveInt = field(16, "Requests, after one that warms up.", apply="live")
    max_concurrency: PositiveInt = field(4, "Most of them in flight.", apply="live")
    input_len: PositiveInt = field(128, "Prompt tokens of each.", apply="live")
    output_len: PositiveInt = field(32, "Output tokens of each.", apply="live")


class SloSection(Section):
    """Promised latencies."""

    doc: ClassVar[str] = "Promised latencies. Benchmarks count what meets them as goodput, servers count who met them."

    shed_factor: PositiveFloat | None = field(
        None,
        "Refuse new requests with 429 while the queue is longer than so many times the loosest ttft bound,"
        " or the loosest e2el bound of a model that pools. null refuses none.",
        apply="live",
    )

    gate: GateSection | None = field(
        None,
        "A load that an engine has to pass before it takes over from the one that serves. null asks for none.",
        apply="live",
    )
    ttft_p50: Duration | None = _bound("Time to the first token", 50)
    ttft_p90: Duration | None = _bound("Time to the first token", 90)
    ttft_p95: Duration | None = _bound("Time to the first token", 95)
    ttft_p99: Duration | None = _bound("Time to the first token", 99)
    itl_p50: Duration | None = _bound("Time between two tokens, which sizes the chunks of prompts", 50, "restart")
    itl_p90: Duration | None = _bound("Time between two tokens, which sizes the chunks of prompts", 90, "restart")
    itl_p95: Duration | None = _bound("Time between two tokens, which sizes the chunks of prompts", 95, "restart")
    itl_p99: Duration | None = _bound("Time between two tokens, which sizes the chunks of prompts", 99, "restart")
    tpot_p50: Duration | None = _bound("Mean time an output token of a request", 50)
    tpot_p90: Duration | None = _bound("Mean time an output token of a request", 90)
    tpot_p95: Duration | None = _bound("Mean time an output token of a request", 95)
    tpot_p99: Duration | None = _bound("Mean time an output token of a request", 99)
    e2el_p50: Duration | None = _bound("Time of a whole request", 50)
    e2el_p90: Duration | None = _bound("Time of a whole request", 90)
    e2el_p95: Duration | None = _bound("Time of a whole request", 95)
    e2el_p99: Duration | None = _bound("Time of a whole request", 99)


class RestartSection(Section):
    """The reaction to an engine that died or hangs."""

    doc: ClassVar[str] = "What happens when the engine dies or hangs. Open requests fail at once in any case."

    policy: Literal["on-failure", "never"] = field("on-failure", "Whether the engine is started again.", apply="live")
    max_restarts: PositiveInt = field(5, "Restarts within the window before giving up.", apply="live")
    window: Duration = field(600.0, "The window.", apply="live")
    backoff: Duration = field(0.5, "Wait before the first restart; doubles each time.", apply="live")
    heartbeat_timeout: Duration = field(
        60.0, "An engine silent for this long is hung.", apply="live", vllm="engine_iteration_timeout_s"
    )


class ShutdownSection(Section):
    """The end of the server."""

    doc: ClassVar[str] = "How the server ends."

    timeout: Duration = field(30.0, "How long open requests may finish after SIGTERM.", apply="live")
