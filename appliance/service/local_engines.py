"""The engines of a plan for one process: an engine in a thread, or a process for each replica."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.sockets import socket_folder
from appliance.engine.messages import BootPhase, EngineEvent
from appliance.plan.types import EnginePlan
from appliance.service.engines import make_engines
from appliance.service.health import EngineHealth, EngineState, Health
from appliance.service.in_process import InProcessEngine
from appliance.service.metrics import ServiceMetrics
from appliance.service.service_client import ServiceClient
from appliance.service.supervisor import EnginePaths
from appliance.service.text_side import TextSide

Announce = Callable[[BootPhase], None]


class LocalEngines(NamedTuple):
    """change_adapters: makes the engines serve the adapters of a plan, or go on with those before. Raises
    ApplianceError."""

    client: ServiceClient
    health: EngineHealth
    change_adapters: Callable[[EnginePlan], Awaitable[None]]


@asynccontextmanager
async def local_engines(
    plan: EnginePlan, text: TextSide, metrics: ServiceMetrics, announce: Announce
) -> AsyncIterator[LocalEngines]:
    """Loads the planned model, in this process or in one for each replica. Raises ApplianceError or ValueError if
    loading fails."""
    load = _replicas if plan.parallel.replicas > 1 else _one
    async with load(plan, text, metrics, announce) as engines:
        yield engines


@asynccontextmanager
async def _one(
    plan: EnginePlan, text: TextSide, metrics: ServiceMetrics, announce: Announce
) -> AsyncIterator[LocalEngines]:
    engine = InProcessEngine(plan, text, announce=announce, metrics=metrics.of_engine())

    async def change_adapters(changed: EnginePlan) -> None:
        await engine.client.change_adapters(() if changed.adapters is None else changed.adapters.served)

    try:
        yield LocalEngines(engine.client, Health(state=EngineState.READY, reason=""), change_adapters)
    finally:
        engine.close()


@asynccontextmanager
async def _replicas(
    plan: EnginePlan, text: TextSide, metrics: ServiceMetrics, announce: Announce
) -> AsyncIterator[LocalEngines]:
    def heard(number: int, event: EngineEvent | Health) -> None:
        if isinstance(event, BootPhase) and number == plan.parallel.first_replica:
            announce(event)

    with socket_folder() as folder:
        path = folder / f"plan-{os.getpid()}.json"
        path.write_bytes(msgspec.json.encode(plan))
        client, engines = make_engines(plan, EnginePaths(path, folder), metrics, heard, (), None)
        client.use_text(text)
        engines.start()
        try:
            settled = await engines.settled()
            if settled.state is EngineState.FAILED:
                raise ApplianceError(f"a replica did not start: {settled.reason}")
            yield LocalEngines(client, engines.health, engines.change_adapters)
        finally:
            await engines.stop()
