"""`appliance audit`: what a deployment exposes, and whether a policy allows it."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import msgspec

from appliance.base.errors import ExitCode
from appliance.cli.arguments.spec import AuditArguments
from appliance.cli.spec_target import spec_target
from appliance.deploy.audit.exposure import ExposedRoute, exposed_routes, reach_of
from appliance.deploy.audit.finding import AuditFinding
from appliance.deploy.audit.policy import Policy, load_policy
from appliance.deploy.audit.rules import audit
from appliance.deploy.kernels_record import KernelsRecord, kernels_record
from appliance.plan.prepare import prepare
from appliance.plan.serving_types import ListenPlan


@dataclass(frozen=True, slots=True)
class _Report:
    """What is printed. failures: the findings that fail the policy."""

    listen: ListenPlan
    kernels: KernelsRecord
    findings: Sequence[AuditFinding]
    failures: Sequence[AuditFinding]
    routes: Sequence[ExposedRoute]


def run(arguments: AuditArguments) -> int:
    """Returns 0 if nothing fails the policy, else 2."""
    policy = load_policy(arguments.policy) if arguments.policy else Policy()
    path, overrides = spec_target(arguments.spec, arguments.overrides)
    prepared = prepare(path, overrides, arguments.hardware, model_facts=arguments.model_facts, to_run=False)
    serving = prepared.plan.serving
    findings = audit(prepared)
    failures = policy.failures(findings)
    kernels = kernels_record(prepared.plan, prepared.inputs.facts)
    report = _Report(serving.listen, kernels, findings, failures, exposed_routes(serving))
    print(_json(report) if arguments.as_json else _text(report))
    return int(ExitCode.INVALID if failures else ExitCode.OK)


def _json(report: _Report) -> str:
    return json.dumps(
        {
            "reach": reach_of(report.listen),
            "usage_statistics": "none",
            "runs_on": msgspec.to_builtins(report.kernels),
            "routes": [asdict(route) for route in report.routes],
            "findings": [
                {**asdict(finding), "gravity": finding.gravity.name.lower(), "fails": finding in report.failures}
                for finding in report.findings
            ],
        }
    )


def _text(report: _Report) -> str:
    listen = report.listen
    where = listen.uds or f"{listen.host}:{listen.port}"
    lines = [f"listens on {where}, reached from: {reach_of(listen)}", *_devices(report.kernels), ""]
    for callers in ("anyone", "key"):
        paths = dict.fromkeys(route.path for route in report.routes if route.callers == callers)
        lines.append(f"{'anyone may call' if callers == 'anyone' else 'with a key':<16}{', '.join(paths) or 'nothing'}")
    for finding in report.findings:
        mark = "FAIL" if finding in report.failures else "note"
        lines += ["", f"{mark}  {finding.gravity.name.lower()}  {finding.rule}  {finding.path}"]
        lines += [f"      {finding.message}", f"      hint: {finding.hint}"]
    lines += ["", "no usage statistics are sent anywhere; `appliance status --usage` counts what was asked of a server"]
    return "\n".join(lines)


def _devices(kernels: KernelsRecord) -> Iterator[str]:
    """Yields a line for the GPUs of one kind, and one for the code that is kept compiled for them; of a CPU nothing."""
    for device, count in Counter(kernels.devices).items():
        times = f"{count} x " if count > 1 else ""
        driver = f", driver {device.driver}" if device.driver else ""
        yield f"runs on {times}{device.name} ({device.architecture}{driver}), kernel set {kernels.kernel_set}"
    if kernels.folder:
        yield f"kernels kept: {kernels.num_kept} in {kernels.folder}, of sources {kernels.sources_sha256[:12]}"
