"""`appliance audit`: what a deployment exposes, and whether a policy allows it."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from appliance.base.errors import ExitCode
from appliance.cli.arguments.spec import AuditArguments
from appliance.cli.spec_target import spec_target
from appliance.deploy.audit.exposure import ExposedRoute, exposed_routes, reach_of
from appliance.deploy.audit.finding import AuditFinding
from appliance.deploy.audit.policy import Policy, load_policy
from appliance.deploy.audit.rules import audit
from appliance.plan.prepare import prepare
from appliance.plan.serving_types import ListenPlan


def run(arguments: AuditArguments) -> int:
    """Returns 0 if nothing fails the policy, else 2."""
    policy = load_policy(arguments.policy) if arguments.policy else Policy()
    path, overrides = spec_target(arguments.spec, arguments.overrides)
    prepared = prepare(path, overrides, arguments.hardware, model_facts=arguments.model_facts, to_run=False)
    serving = prepared.plan.serving
    findings, routes = audit(prepared), exposed_routes(serving)
    failures = policy.failures(findings)
    shown = _json if arguments.as_json else _text
    print(shown(serving.listen, findings, failures, routes))
    return int(ExitCode.INVALID if failures else ExitCode.OK)


def _json(
    listen: ListenPlan,
    findings: Sequence[AuditFinding],
    failures: Sequence[AuditFinding],
    routes: Sequence[ExposedRoute],
) -> str:
    return json.dumps(
        {
            "reach": reach_of(listen),
            "routes": [asdict(route) for route in routes],
            "findings": [
                {**asdict(finding), "gravity": finding.gravity.name.lower(), "fails": finding in failures}
                for finding in findings
            ],
        }
    )


def _text(
    listen: ListenPlan,
    findings: Sequence[AuditFinding],
    failures: Sequence[AuditFinding],
    routes: Sequence[ExposedRoute],
) -> str:
    where = listen.uds or f"{listen.host}:{listen.port}"
    lines = [f"listens on {where}, reached from: {reach_of(listen)}", ""]
    for callers in ("anyone", "key"):
        paths = [route.path for route in routes if route.callers == callers]
        lines.append(f"{'anyone may call' if callers == 'anyone' else 'with a key':<16}{', '.join(paths) or 'nothing'}")
    for finding in findings:
        mark = "FAIL" if finding in failures else "note"
        lines += ["", f"{mark}  {finding.gravity.name.lower()}  {finding.rule}  {finding.path}"]
        lines += [f"      {finding.message}", f"      hint: {finding.hint}"]
    return "\n".join(lines)
