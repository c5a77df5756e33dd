"""The server's API on engines of this process, without sockets, for batches."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from starlette.types import ASGIApp

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.base.sockets import socket_folder
from appliance.engine.messages import BootPhase, EngineEvent
from appliance.plan.serving_types import AuthPlan, CorsPlan, ServingPlan
from appliance.plan.types import EnginePlan
from appliance.server.http.app import make_app
from appliance.server.state import make_state
from appliance.service.engines import make_engines
from appliance.service.health import EngineHealth, EngineState, Health
from appliance.service.in_process import InProcessEngine
from appliance.service.metrics import ServiceMetrics
from appliance.service.service_client import ServiceClient
from appliance.service.supervisor import EnginePaths
from appliance.service.text_side import TextSide, load_text_side

Announce = Callable[[BootPhase], None]


class _Loaded(NamedTuple):
    client: ServiceClient
    health: EngineHealth


@asynccontextmanager
async def inproc_api(plan: EnginePlan, announce: Announce) -> AsyncIterator[ASGIApp]:
    """Loads the planned model, in this process or in one for each replica, and yields the application. It cannot be
    reached from outside, so it needs no API keys.

    Raises ApplianceError or ValueError if loading fails.
    """
    plan = msgspec.structs.replace(plan, serving=_within(plan.serving))
    metrics = ServiceMetrics(plan.model.served_names[0])
    text = load_text_side(plan, cache_dir())
    load = _replicas if plan.parallel.replicas > 1 else _one
    async with load(plan, text, metrics, announce) as engines:
        metrics.describe(plan)
        state = make_state(plan, engines.client, metrics, engines.health, text.tokenizer)
        try:
            yield make_app(state)
        finally:
            if state.tracer is not None:
                await asyncio.to_thread(state.tracer.close)


@asynccontextmanager
async def _one(plan: EnginePlan, text: TextSide, metrics: ServiceMetrics, announce: Announce) -> AsyncIterator[_Loaded]:
    engine = InProcessEngine(plan, text, announce=announce, metrics=metrics.of_engine())
    try:
        yield _Loaded(engine.client, Health(state=EngineState.READY, reason=""))
    finally:
        engine.close()


@asynccontextmanager
async def _replicas(
    plan: EnginePlan, text: TextSide, metrics: ServiceMetrics, announce: Announce
) -> AsyncIterator[_Loaded]:
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
            yield _Loaded(client, engines.health)
        finally:
            await engines.stop()


def _within(serving: ServingPlan) -> ServingPlan:
    """Leaves out what is for clients of a network: keys, hosts, origins, middleware, logs of answers, shedding."""
    replace = msgspec.structs.replace
    return replace(
        serving,
        http=replace(serving.http, allowed_hosts=(), cors=CorsPlan(), middleware=()),
        auth=AuthPlan(key_hashes={}),
        logs=replace(serving.logs, config_file=None, log_outputs=False, access_log=False),
        shed_above_s=None,
    )
