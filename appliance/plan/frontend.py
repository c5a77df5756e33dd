"""The front's part of pass `serving`: sockets, certificates, names, keys, traces."""

from urllib.parse import urlsplit

from appliance.plan.inputs import PlanInputs
from appliance.plan.types import FrontPlan, KeyPlan, TlsPlan, TracesPlan
from appliance.spec.rules.endpoints import is_loopback
from appliance.spec.sections.endpoints import HttpSection, KeySection, TlsSection


def plan_front(inputs: PlanInputs) -> FrontPlan:
    endpoints, logs = inputs.spec.endpoints, inputs.spec.observability.logs
    http, limits, auth, cors = endpoints.http, endpoints.limits, endpoints.auth, endpoints.cors
    return FrontPlan(
        uds=http.uds,
        tls=_tls(endpoints.tls),
        allowed_hosts=_allowed_hosts(http),
        header_timeout_s=limits.header_timeout,
        body_timeout_s=limits.body_timeout,
        write_timeout_s=limits.write_timeout,
        max_connections=limits.max_connections,
        cors_methods=tuple(cors.allowed_methods),
        cors_headers=tuple(cors.allowed_headers),
        cors_credentials=cors.allow_credentials,
        middleware=tuple(http.middleware),
        page=http.enable_page,
        offline_docs=http.enable_offline_docs,
        access_log=logs.enable_access_log,
        log_outputs=logs.enable_log_outputs,
        log_config_file=logs.log_config_file,
        keys_file=auth.keys_file,
        key_rules={key.name: rules for key in auth.keys if (rules := _rules(key)) != KeyPlan()},
        api_servers=http.api_server_count,
        isolate_caches=auth.isolate_caches,
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
    )


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
    """On loopback only loopback's names, so that no page of another site can make a browser talk to us."""
    if http.allowed_hosts != "auto":
        return () if "*" in http.allowed_hosts else tuple(name.lower() for name in http.allowed_hosts)
    if not is_loopback(http.host):
        return ()
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "[::1]", _as_host(http.host))))


def _as_host(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address.lower()
