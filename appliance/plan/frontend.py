"""The front's part of pass `serving`: sockets, certificates, names, keys, limits, logs, what is kept, traces."""

from typing import Literal
from urllib.parse import urlsplit

from appliance.plan.inputs import PlanInputs
from appliance.plan.serving_types import (
    AdapterRulesPlan,
    AuthPlan,
    CorsPlan,
    ExportersPlan,
    HttpPlan,
    KeyPlan,
    LimitsPlan,
    ListenPlan,
    LogsPlan,
    RoutesPlan,
    StorePlan,
    TlsPlan,
    TracesPlan,
)
from appliance.spec.rules.endpoints import is_loopback
from appliance.spec.sections.endpoints import HttpSection, KeySection, TlsSection
from appliance.spec.sections.observability import TracesSection


def plan_listen(inputs: PlanInputs) -> ListenPlan:
    http = inputs.spec.endpoints.http
    return ListenPlan(host=http.host, port=http.port, uds=http.uds, tls=_tls(inputs.spec.endpoints.tls))


def plan_http(inputs: PlanInputs) -> HttpPlan:
    http, cors = inputs.spec.endpoints.http, inputs.spec.endpoints.cors
    return HttpPlan(
        root_path=http.root_path,
        keep_alive_s=http.keep_alive,
        request_id_headers=http.enable_request_id_headers,
        allowed_hosts=_allowed_hosts(http),
        cors=CorsPlan(
            origins=tuple(cors.allowed_origins),
            methods=tuple(cors.allowed_methods),
            headers=tuple(cors.allowed_headers),
            credentials=cors.allow_credentials,
        ),
        middleware=tuple(http.middleware),
    )


def plan_routes(inputs: PlanInputs) -> RoutesPlan:
    http = inputs.spec.endpoints.http
    return RoutesPlan(
        apis=tuple(inputs.spec.endpoints.apis),
        metrics=inputs.spec.observability.metrics.enabled,
        docs=http.enable_docs,
        offline_docs=http.enable_offline_docs,
        page=http.enable_page,
        tokenizer_info=http.enable_tokenizer_info_endpoint,
        server_load_tracking=http.enable_server_load_tracking,
        sleep=inputs.spec.model.enable_sleep_mode,
        profiler_dir=inputs.files.profiler_dir or inputs.spec.observability.profiler_dir,
        weight_update_paths=inputs.files.weight_update_paths,
        runtime_adapters=inputs.spec.lora is not None and inputs.spec.lora.allow_runtime_updating,
    )


def plan_exporters(inputs: PlanInputs) -> ExportersPlan:
    metrics = inputs.spec.observability.metrics
    return ExportersPlan(names=tuple(metrics.exporters), interval_s=metrics.export_interval)


def plan_adapter_rules(inputs: PlanInputs) -> AdapterRulesPlan:
    lora = inputs.spec.lora
    if lora is None:
        return AdapterRulesPlan()
    return AdapterRulesPlan(
        paths=inputs.files.adapter_paths,
        resolver_dir=inputs.files.adapter_resolver_dir,
        resolver=lora.resolver,
        request_scale=lora.allow_request_scale,
    )


def plan_auth(inputs: PlanInputs) -> AuthPlan:
    auth = inputs.spec.endpoints.auth
    return AuthPlan(
        key_hashes={key.name: key.hash for key in auth.keys},
        key_rules={key.name: rules for key in auth.keys if (rules := _rules(key)) != KeyPlan()},
        keys_file=auth.keys_file,
        isolate_caches=auth.isolate_caches,
    )


def plan_limits(inputs: PlanInputs) -> LimitsPlan:
    limits = inputs.spec.endpoints.limits
    return LimitsPlan(
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        max_headers=limits.max_headers,
        max_n=limits.max_n,
        max_connections=limits.max_connections,
        header_timeout_s=limits.header_timeout,
        body_timeout_s=limits.body_timeout,
        write_timeout_s=limits.write_timeout,
    )


def plan_logs(inputs: PlanInputs) -> LogsPlan:
    logs = inputs.spec.observability.logs
    return LogsPlan(
        level=logs.level,
        config_file=logs.log_config_file,
        log_requests=logs.enable_log_requests,
        log_outputs=logs.enable_log_outputs,
        max_log_len=logs.max_log_len,
        access_log=logs.enable_access_log,
    )


def plan_store(inputs: PlanInputs) -> StorePlan:
    store = inputs.spec.endpoints.store
    return StorePlan(
        dir=store.dir,
        max_bytes=store.max_bytes,
        max_files=store.max_files,
        max_batches=store.max_batches,
        lifetime_s=store.file_lifetime,
        max_responses=store.max_responses,
        max_response_bytes=store.max_response_bytes,
    )


def plan_traces(inputs: PlanInputs) -> TracesPlan | None:
    section = inputs.spec.observability.traces
    if section is None or section.otlp_traces_endpoint is None:
        return None
    endpoint = section.otlp_traces_endpoint
    has_path = urlsplit(endpoint).path.strip("/")
    return TracesPlan(
        endpoint=endpoint if has_path else endpoint.rstrip("/") + "/v1/traces",
        sampling_ratio=section.sampling_ratio,
        service_name=section.service_name or inputs.spec.name,
        parts=_parts(section),
    )


def _parts(section: TracesSection) -> tuple[Literal["scheduler", "forward", "execute"], ...]:
    """Returns the parts that vLLM measures by these names; what is asked for twice is measured once."""
    asked = set(section.collect_detailed_traces)
    if "all" in asked:
        return ("scheduler", "forward", "execute")
    return (*(("forward",) if "model" in asked else ()), *(("execute",) if "worker" in asked else ()))


def _tls(section: TlsSection | None) -> TlsPlan | None:
    if section is None or section.certfile is None or section.keyfile is None:
        return None
    return TlsPlan(
        certfile=section.certfile,
        keyfile=section.keyfile,
        ca_certs=section.ca_certs,
        client_certificates=section.cert_reqs,
        refresh=section.enable_refresh,
    )


def _rules(key: KeySection) -> KeyPlan:
    return KeyPlan(
        models=None if key.models is None else tuple(key.models),
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        max_concurrency=key.max_concurrency,
        priority=key.priority,
    )


def _allowed_hosts(http: HttpSection) -> tuple[str, ...]:
    """Allows only loopback's names on loopback, so that no page of another site can make a browser call this server."""
    if http.allowed_hosts != "auto":
        return () if "*" in http.allowed_hosts else tuple(name.lower() for name in http.allowed_hosts)
    if not is_loopback(http.host):
        return ()
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "[::1]", _as_host(http.host))))


def _as_host(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address.lower()
