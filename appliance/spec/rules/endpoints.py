"""Rules of `endpoints`, `observability`, `slo` and `restart`."""

import ipaddress
import re
from itertools import pairwise

from appliance.base.diagnostics import Severity
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings, repeated
from appliance.spec.sections.endpoints import AuthSection

_LATENCIES = ("ttft", "itl", "tpot", "e2el")
_PERCENTILES = (50, 90, 95, 99)


def public_needs_keys(spec: DeploymentSpec) -> Findings:
    http, auth = spec.endpoints.http, spec.endpoints.auth
    if http.uds is None and not is_loopback(http.host) and not _has_keys(auth) and not auth.allow_public_without_keys:
        yield Finding(
            path="endpoints.http.host",
            value=http.host,
            message=f"{http.host} can be reached from other machines, and there are no API keys",
            allowed="a loopback address, unless endpoints.auth.keys is there",
            hint="list keys in endpoints.auth.keys, or say endpoints.auth.allow_public_without_keys: true",
        )


def _has_keys(auth: AuthSection) -> bool:
    return bool(auth.keys) or auth.keys_file is not None


def is_loopback(host: str) -> bool:
    """Returns whether the host is a loopback address. Names other than localhost count as public, as they may resolve
    to any address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def socket_hides_port(spec: DeploymentSpec) -> Findings:
    http = spec.endpoints.http
    for name in ("host", "port"):
        if http.uds is not None and name in http.model_fields_set:
            yield Finding(
                path=f"endpoints.http.{name}",
                value=getattr(http, name),
                message=f"endpoints.http.{name} has no use beside a Unix socket",
                hint=f"remove {name}, or uds",
                severity=Severity.WARNING,
            )


def keys_differ(spec: DeploymentSpec) -> Findings:
    keys = spec.endpoints.auth.keys
    for index, name in repeated(key.name for key in keys):
        path = f"endpoints.auth.keys[{index}].name"
        yield Finding(path=path, value=name, message=f"two keys are named {name!r}", hint="rename one of them")
    for index, _ in repeated(key.hash for key in keys):
        path = f"endpoints.auth.keys[{index}].hash"
        yield Finding(path=path, message="this key is listed twice", hint="give each name a key of its own")


def key_rules_can_hold(spec: DeploymentSpec) -> Findings:
    auth, served = spec.endpoints.auth, [*spec.model.served_names]
    if spec.lora is not None and served:
        served += [adapter.name for adapter in spec.lora.adapters]
    for index, key in enumerate(auth.keys):
        path = f"endpoints.auth.keys[{index}]"
        for name in key.models or ():
            if served and name not in served:
                yield Finding(
                    path=f"{path}.models",
                    value=name,
                    message=f"the key {key.name!r} may use {name!r}, which is not served",
                    allowed=", ".join(served),
                    hint="name it in model.served_names or lora.adapters, or remove it here",
                )
        if key.priority and spec.scheduler.policy != "priority":
            yield Finding(
                path=f"{path}.priority",
                value=key.priority,
                message=f"the policy {spec.scheduler.policy} knows no priorities",
                hint="write scheduler.policy: priority",
            )
    if auth.isolate_caches and not _has_keys(auth):
        yield Finding(
            path="endpoints.auth.isolate_caches",
            value=True,
            message="caches are isolated by key, and there are no keys",
            hint="list keys in endpoints.auth.keys, or remove isolate_caches",
        )


def certificate_has_a_key(spec: DeploymentSpec) -> Findings:
    tls = spec.endpoints.tls
    if tls is None:
        return
    for name, other in (("keyfile", "certfile"), ("certfile", "keyfile")):
        if getattr(tls, name) is not None and getattr(tls, other) is None:
            yield Finding(
                path=f"endpoints.tls.{name}",
                value=getattr(tls, name),
                message=f"a {name} needs a {other}",
                hint=f"write endpoints.tls.{other}: <path>",
            )
    if tls.cert_reqs != "none" and tls.ca_certs is None:
        yield Finding(
            path="endpoints.tls.cert_reqs",
            value=tls.cert_reqs,
            message="client certificates are checked against ca_certs, which is missing",
            hint="write endpoints.tls.ca_certs: <path>",
        )


def credentials_need_origins(spec: DeploymentSpec) -> Findings:
    cors = spec.endpoints.cors
    if cors.allow_credentials and "*" in cors.allowed_origins:
        yield Finding(
            path="endpoints.cors.allow_credentials",
            value=True,
            message="credentials for every origin: browsers refuse it, and any page could use a visitor's login",
            hint="list the origins, or remove allow_credentials",
        )


def root_path_is_a_path(spec: DeploymentSpec) -> Findings:
    path = spec.endpoints.http.root_path
    if path and (not path.startswith("/") or path.endswith("/")):
        yield Finding(
            path="endpoints.http.root_path",
            value=path,
            message=f"root_path cannot be {path!r}",
            allowed="a path that begins with / and does not end with it",
            hint=f"write /{path.strip('/')}" if path.strip("/") else "remove root_path",
        )


def traces_need_an_endpoint(spec: DeploymentSpec) -> Findings:
    traces = spec.observability.traces
    if traces is None:
        return
    if traces.otlp_traces_endpoint is None:
        first = next(iter(sorted(traces.model_fields_set)), None)
        yield Finding(
            path="observability.traces" + (f".{first}" if first else ""),
            value=None if first is None else getattr(traces, first),
            message="traces need otlp_traces_endpoint",
            hint="write observability.traces.otlp_traces_endpoint: http://host:4318",
        )
    elif re.search(r":4317(/|$)", traces.otlp_traces_endpoint):
        yield Finding(
            path="observability.traces.otlp_traces_endpoint",
            value=traces.otlp_traces_endpoint,
            message="4317 is the port of OTLP over gRPC; traces are sent over HTTP",
            hint="collectors take HTTP at port 4318",
            severity=Severity.WARNING,
        )


def outputs_need_requests(spec: DeploymentSpec) -> Findings:
    logs = spec.observability.logs
    if logs.enable_log_outputs and not logs.enable_log_requests:
        yield Finding(
            path="observability.logs.enable_log_outputs",
            value=True,
            message="outputs are logged with their requests, which are not logged",
            hint="write enable_log_requests: true as well",
        )


def percentiles_rise(spec: DeploymentSpec) -> Findings:
    for metric in _LATENCIES:
        names = [f"{metric}_p{percent}" for percent in _PERCENTILES]
        bounds = [(name, getattr(spec.slo, name)) for name in names if getattr(spec.slo, name) is not None]
        for (lower, less), (higher, more) in pairwise(bounds):
            if more < less:
                yield Finding(
                    path=f"slo.{higher}",
                    value=more,
                    message=f"slo.{higher} is below slo.{lower}, which it includes",
                    hint=f"write at least {less:g}s",
                )


def shedding_needs_a_bound(spec: DeploymentSpec) -> Findings:
    slo = spec.slo
    bounds = (getattr(slo, f"{metric}_p{percent}") for metric in ("ttft", "e2el") for percent in _PERCENTILES)
    if slo.shed_factor is not None and all(bound is None for bound in bounds):
        yield Finding(
            path="slo.shed_factor",
            value=slo.shed_factor,
            message="there is no ttft bound to multiply",
            hint="write slo.ttft_p95: 2s as well",
        )


def gate_needs_a_bound(spec: DeploymentSpec) -> Findings:
    bounds = (getattr(spec.slo, f"{metric}_p{rank}") for metric in _LATENCIES for rank in _PERCENTILES)
    if spec.slo.gate is not None and all(bound is None for bound in bounds):
        yield Finding(
            path="slo.gate",
            message="there is no bound to judge by",
            hint="write slo.ttft_p95: 2s as well",
        )


def heartbeat_leaves_time(spec: DeploymentSpec) -> Findings:
    timeout = spec.restart.heartbeat_timeout
    if timeout < 1:
        yield Finding(
            path="restart.heartbeat_timeout",
            value=timeout,
            message="an engine that is only busy would be taken for hung",
            allowed="at least 1s",
            hint="default: 60s",
        )


def exports_have_an_interval(spec: DeploymentSpec) -> Findings:
    interval = spec.observability.metrics.export_interval
    if interval < 0.1:
        yield Finding(
            path="observability.metrics.export_interval",
            value=interval,
            message="figures would be gathered without a rest",
            allowed="at least 100ms",
            hint="default: 15s",
        )
