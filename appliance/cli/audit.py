"""`appliance audit`: what a deployment exposes, and whether a policy allows it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.deploy.audit.exposure import ExposedRoute, exposed_routes, reach_of
from appliance.deploy.audit.finding import Finding
from appliance.deploy.audit.policy import Policy, load_policy
from appliance.deploy.audit.rules import audit
from appliance.plan.prepare import prepare
from appliance.plan.types import ServingPlan


def run(
    spec: str,
    overrides: Sequence[str] = (),
    policy_file: str | None = None,
    *,
    hardware: str | None = None,
    model_facts: str | None = None,
    as_json: bool = False,
) -> int:
    """0 when nothing fails the policy, 2 when something does."""
    policy = load_policy(Path(policy_file)) if policy_file else Policy()
    facts = Path(model_facts) if model_facts else None
    prepared = prepare(spec, overrides, hardware, model_facts=facts, to_run=False)
    serving = prepared.plan.serving
    findings, routes = audit(prepared), exposed_routes(serving)
    failures = policy.failures(findings)
    print(_json(serving, findings, failures, routes) if as_json else _text(serving, findings, failures, routes))
    return int(ExitCode.INVALID if failures else ExitCode.OK)


def _json(
    serving: ServingPlan, findings: Sequence[Finding], failures: Sequence[Finding], routes: Sequence[ExposedRoute]
) -> str:
    return json.dumps(
        {
            "reach": reach_of(serving),
            "routes": [asdict(route) for route in routes],
            "findings": [
                {**asdict(finding), "gravity": finding.gravity.name.lower(), "fails": finding in failures}
                for finding in findings
            ],
        }
    )


def _text(
    serving: ServingPlan, findings: Sequence[Finding], failures: Sequence[Finding], routes: Sequence[ExposedRoute]
) -> str:
    where = serving.front.uds or f"{serving.host}:{serving.port}"
    lines = [f"listens on {where}, reached from: {reach_of(serving)}", ""]
    for callers in ("anyone", "key"):
        paths = [route.path for route in routes if route.callers == callers]
        lines.append(f"{'anyone may call' if callers == 'anyone' else 'with a key':<16}{', '.join(paths) or 'nothing'}")
    for finding in findings:
        mark = "FAIL" if finding in failures else "note"
        lines += ["", f"{mark}  {finding.gravity.name.lower()}  {finding.rule}  {finding.path}"]
        lines += [f"      {finding.message}", f"      hint: {finding.hint}"]
    return "\n".join(lines)
