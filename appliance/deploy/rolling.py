"""Which changes replicas can take one after the other, while the others serve."""

from collections.abc import Sequence
from typing import Final

from appliance.deploy.reconcile import PlanChange
from appliance.plan.types import EnginePlan

# What an engine alone reads, and two engines of one service may have differently for a while.
_OWN: Final = (
    *("cache", "scheduler", "kernels", "graphs", "speculation", "precision", "loading"),
    *("parallel.tensor", "parallel.pipeline", "parallel.backend", "parallel.distributed_timeout_s"),
    *("model.max_model_len", "model.seed", "model.logprobs_mode"),
)


def can_roll(running: EnginePlan, changes: Sequence[PlanChange]) -> bool:
    """Returns whether there are several replicas, and every change is one of an engine's own or live. Others, such as
    another model, other adapters or another number of replicas, need a new server; and so do all where replicas have
    experts among them, which run their steps together or not at all."""
    if running.parallel.spreads_experts:
        return False
    return running.parallel.replicas > 1 and all(each.apply == "live" or _is_own(each.path) for each in changes)


def _is_own(path: str) -> bool:
    return any(path == each or path.startswith(each + ".") for each in _OWN)
