"""What the parts of an engine tell beside its scheduler."""

import msgspec

from appliance.engine.expert_messages import expert_stats
from appliance.engine.idle import IdleWork
from appliance.engine.messages import EngineStats
from appliance.engine.sleep import Sleep


def with_told(stats: EngineStats, idle: IdleWork, sleep: Sleep | None, executable: object) -> EngineStats:
    """Returns statistics of the scheduler with those of graphs, of sleep, and of experts that move."""
    slept, experts = None if sleep is None else sleep.stats, expert_stats(executable)
    return msgspec.structs.replace(stats, graphs=idle.graphs, sleep=slept, experts=experts)
