"""The engines of a plan with their HTTP application, without a listener of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError
from appliance.base.log import configure
from appliance.base.sockets import socket_folder
from appliance.plan.types import EnginePlan
from appliance.server.http.app import make_app
from appliance.server.state import make_state
from appliance.service.engines import make_engines
from appliance.service.health import EngineHealth, EngineState
from appliance.service.metrics import ServiceMetrics
from appliance.service.supervisor import EnginePaths
from appliance.service.text_side import load_text_side


@dataclass(frozen=True, slots=True)
class Host:
    """app: what a server of this plan would answer. health: of the engines, which keeps changing."""

    app: ASGIApp
    health: EngineHealth


@asynccontextmanager
async def engine_host(plan: EnginePlan) -> AsyncIterator[Host]:
    """Starts the plan's engines and yields when they take requests. Raises ApplianceError if they do not start."""
    configure(plan.serving.logs.level, config_file=plan.serving.logs.config_file)
    metrics = ServiceMetrics(plan.model.served_names[0])
    with socket_folder() as folder:
        path = folder / "plan.json"
        path.write_bytes(msgspec.json.encode(plan))
        client, supervisor = make_engines(
            plan, EnginePaths(path, folder), metrics, lambda number, event: None, (), None
        )
        supervisor.start()
        try:
            text = await asyncio.to_thread(load_text_side, plan, cache_dir())
            client.use_text(text)
            state = make_state(plan, client, metrics, supervisor.health, text.tokenizer)
            metrics.describe(plan)
            settled = await supervisor.settled()
            if settled.state is EngineState.FAILED:
                raise ApplianceError(f"the engine did not start: {settled.reason}")
            try:
                yield Host(make_app(state), supervisor.health)
            finally:
                await state.tools.close()
            if state.tracer is not None:
                await asyncio.to_thread(state.tracer.close)
        finally:
            await supervisor.stop()
