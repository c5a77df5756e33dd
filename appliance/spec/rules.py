"""Cross-field rules: each a pure function from the spec to findings, listed in `catalog.rules`."""

from appliance.base.diagnostics import Diagnostic
from appliance.spec.deployment import DeploymentSpec


def check_rules(spec: DeploymentSpec) -> list[Diagnostic]:
    return []
