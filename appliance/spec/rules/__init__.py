"""Cross-field rules: pure functions from a typed spec to findings. `catalog.rules` lists them with their ids."""

import importlib
from collections.abc import Callable, Collection
from typing import cast

from appliance.base.diagnostics import Diagnostic
from appliance.catalog.rules import CROSS_FIELD, CrossFieldRule
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings
from appliance.spec.rules.tracked import Tracked, touches


def check_rules(spec: DeploymentSpec, guessed: Collection[str] = ()) -> list[Diagnostic]:
    """Runs every cross-field rule; the findings have no places yet.

    `guessed` are paths whose written values were wrong and were replaced: a rule that reads one of them finds nothing.
    """
    found: list[Diagnostic] = []
    for rule in CROSS_FIELD:
        reads: set[str] = set()
        view = cast(DeploymentSpec, Tracked(spec, "", reads)) if guessed else spec
        findings = list(_function(rule)(view))
        if not any(touches(reads, path) for path in guessed):
            found += [_diagnostic(rule, each) for each in findings]
    return found


def _function(rule: CrossFieldRule) -> Callable[[DeploymentSpec], Findings]:
    function: Callable[[DeploymentSpec], Findings] = getattr(
        importlib.import_module(f"appliance.spec.rules.{rule.module}"), rule.check
    )
    return function


def _diagnostic(rule: CrossFieldRule, found: Finding) -> Diagnostic:
    return Diagnostic(
        rule=rule.id,
        message=found.message,
        path=found.path,
        severity=found.severity,
        value=found.value,
        allowed=found.allowed,
        hint=found.hint,
    )
