"""Loads a scheduling policy of the operator's own, and asks it for a bounded time."""

import operator
from typing import Final

from appliance.base.bounded import BoundedCalls
from appliance.base.plugin_types import OpenSequence, SchedulingPolicy
from appliance.base.plugins import PluginError, load_plugin
from appliance.engine.core.ordering import AskPolicy

FIELD: Final = "scheduler.scheduler_cls"
POLICY_TIMEOUT_S: Final = 1.0  # of one order, while which nothing runs


def load_policy(path: str, timeout_s: float = POLICY_TIMEOUT_S) -> AskPolicy:
    """Imports a SchedulingPolicy; a class is constructed. Raises PluginError."""
    found = load_plugin(path, FIELD)
    try:
        policy: SchedulingPolicy = found() if isinstance(found, type) else found
    except Exception as error:
        raise PluginError(f"{FIELD}: {path}() raised {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "order", None)):
        raise PluginError(f"{FIELD}: {path} has no method order", hint="def order(self, sequences) that returns ids")
    calls = BoundedCalls(timeout_s)

    def ask(sequences: list[OpenSequence]) -> list[int]:
        return calls.run(path, lambda: [operator.index(each) for each in policy.order(sequences)])

    return ask
