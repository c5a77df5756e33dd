"""Cross-field rules: pure functions from a typed spec to findings. `catalog.rules` lists them with their ids."""

import importlib

from appliance.base.diagnostics import Diagnostic
from appliance.catalog.rules import CROSS_FIELD
from appliance.spec.deployment import DeploymentSpec


def check_rules(spec: DeploymentSpec) -> list[Diagnostic]:
    """What every cross-field rule finds; places are still missing."""
    return [
        Diagnostic(
            rule=rule.id,
            message=found.message,
            path=found.path,
            severity=found.severity,
            value=found.value,
            allowed=found.allowed,
            hint=found.hint,
        )
        for rule in CROSS_FIELD
        for found in getattr(importlib.import_module(f"appliance.spec.rules.{rule.module}"), rule.check)(spec)
    ]
