"""The engines of a server: one with its supervisor, or several replicas."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from appliance.engine.messages import EngineEvent
from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.engine_spawn import SpawnedEngine
from appliance.service.health import EngineHealth, Health
from appliance.service.metrics import ServiceMetrics
from appliance.service.replicas.replica_set import ReplicaSet
from appliance.service.rolling import RollRules
from appliance.service.service_client import ServiceClient
from appliance.service.supervisor import EnginePaths, Supervisor

Listener = Callable[[int, EngineEvent | Health], None]
"""Hears of the engine of a number every boot phase and every change of health, in order."""


class EngineService(Protocol):
    """Starts and watches engines: Supervisor says of each member what it does."""

    @property
    def health(self) -> EngineHealth: ...

    @property
    def endpoints(self) -> Sequence[str]:
        """The addresses of the engines' sockets; empty ones before the first start."""

    def start(self) -> None: ...

    async def settled(self) -> EngineHealth: ...

    def use_plan(self, plan: EnginePlan) -> None: ...

    async def change_adapters(self, plan: EnginePlan) -> None: ...

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None: ...

    def drain(self) -> None: ...

    async def stop(self) -> None: ...


def make_engines(
    plan: EnginePlan,
    paths: EnginePaths,
    metrics: ServiceMetrics,
    listener: Listener,
    command: Sequence[str],
    first: SpawnedEngine | None,
) -> tuple[ServiceClient, EngineService]:
    """Returns the client of as many engines as the plan has here, and what keeps them. first: the engine of the first
    one, which was started already."""
    parallel = plan.parallel
    if parallel.replicas > 1:
        replicas = ReplicaSet(plan, paths, metrics, listener=listener, command=command, first=first)
        return replicas.client, replicas
    number = parallel.first_replica
    figures = metrics.of_engine(number)
    client = EngineClient(AdmissionLimits.of(plan.scheduler), figures)
    supervisor = Supervisor(
        plan,
        paths,
        client,
        metrics=figures,
        listener=partial(listener, number),
        command=command,
        first=first,
        replica=number,
    )
    return client, supervisor
