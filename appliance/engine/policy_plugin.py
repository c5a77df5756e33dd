"""Loads a scheduling policy of the operator's own, and asks it for a bounded time."""

import operator
from typing import Final

from appliance.base.bounded import BoundedCalls
from appliance.base.plugin_types import OpenSequence, SchedulingPolicy
from appliance.base.plugins import PluginError, made_plugin
from appliance.engine.core.ordering import AskPolicy

FIELD: Final = "scheduler.scheduler_cls"
POLICY_TIMEOUT_S: Final = 1.0  # of one order, while which nothing runs


def load_policy(path: str, timeout_s: float = POLICY_TIMEOUT_S) -> AskPolicy:
    """Imports a SchedulingPolicy; a class is constructed. Raises PluginError."""
    policy: SchedulingPolicy = made_plugin(path, FIELD)
    if not callable(getattr(policy, "order", None)):
        raise PluginError(f"{FIELD}: {path} has no method order", hint="def order(self, sequences) that returns ids")
    calls = BoundedCalls(timeout_s)

    def ask(sequences: list[OpenSequence]) -> list[int]:
        return calls.run(path, lambda: [operator.index(each) for each in policy.order(sequences)])

    return ask
