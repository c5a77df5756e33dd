"""What the requests of a scenario ask for: what the model is for, unless the scenario says otherwise."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from appliance.base.errors import ApplianceError
from appliance.bench.scenario import Scenario, Task
from appliance.plan.types import EnginePlan

# By what a model is served to do: the tasks that it has a route for, the usual one first.
_TASKS: Final[Mapping[str, tuple[Task, ...]]] = {
    "generate": ("generate",),
    "embed": ("embed", "pool", "score", "rerank"),
    "classify": ("classify", "pool"),
    "score": ("score", "rerank", "classify", "pool"),
}
_TEXT_PAIRS: Final = ("score", "rerank")


def with_task(scenario: Scenario, plan: EnginePlan | None, *, pools: bool) -> Scenario:
    """Returns the scenario with what its requests ask for.

    plan: None if only a server's address is known. pools: a model that pools is meant. Raises ApplianceError for a task
    that the model has no route for.
    """
    allowed = tasks_of(plan, pools=pools)
    if pools and allowed == ("generate",):
        raise ApplianceError("the model generates, and pools nothing", hint="use bench serve, latency or throughput")
    task = allowed[0] if scenario.task == "auto" else scenario.task
    if task not in allowed:
        message = f"{scenario.name}: requests to {task} are not for this model; it has {', '.join(allowed)}"
        raise ApplianceError(message, hint="task: auto asks for what the model is for")
    texts = scenario.texts or (scenario.kind == "serve" and task in _TEXT_PAIRS)
    return replace(scenario, task=task, texts=texts, stream=scenario.stream and task == "generate")


def tasks_of(plan: EnginePlan | None, *, pools: bool) -> tuple[Task, ...]:
    """Returns what a model may be asked, the usual first; of an unknown model, everything."""
    if plan is None:
        pooled: tuple[Task, ...] = ("embed", "pool", "classify", "score", "rerank")
        return pooled if pools else ("generate", *pooled)
    if plan.model.pooling is None:
        return _TASKS["generate"]
    if plan.model.pooling.kind == "all":
        return ("pool", "score", "rerank") if plan.model.pooling.task == "embed" else ("pool",)
    return _TASKS[plan.model.pooling.task]
