"""Scheduling policies: the order in which sequences are served. The first is admitted first and preempted last."""

from collections.abc import Callable
from typing import Literal

PolicyKey = tuple[float, ...]
Policy = Callable[[int, float, int, int], PolicyKey]


def fcfs(priority: int, arrival_time: float, order: int, index: int) -> PolicyKey:
    """Serves first come first, by the order in which requests reached the engine."""
    return (order, index)


def by_priority(priority: int, arrival_time: float, order: int, index: int) -> PolicyKey:
    """Serves lower priority numbers first; ties go by the client's arrival time, then by order."""
    return (priority, arrival_time, order, index)


POLICIES: dict[Literal["fcfs", "priority"], Policy] = {"fcfs": fcfs, "priority": by_priority}
