"""The server's API over an engine in this process, without sockets: what a batch talks to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.types import ASGIApp

from appliance.base.environ import cache_dir
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import BootPhase, EngineEvent, Fatal
from appliance.plan.types import EnginePlan
from appliance.server.app import make_app
from appliance.server.state import make_state
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.health import EngineState, Health
from appliance.service.link import ThreadLink
from appliance.service.metrics import ServiceMetrics
from appliance.service.text_side import load_text_side


@asynccontextmanager
async def inproc_api(plan: EnginePlan, announce: Callable[[BootPhase], None]) -> AsyncIterator[ASGIApp]:
    """Loads the planned model and gives the application. Nobody reaches it from outside, so API keys do not apply.

    Raises what loading raises (ApplianceError, ValueError).
    """
    plan = msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, key_hashes={}))
    metrics = ServiceMetrics(plan.model.served_names[0])
    client = EngineClient(AdmissionLimits(plan.scheduler.max_num_seqs, plan.scheduler.max_waiting), metrics)
    loading = asyncio.to_thread(InprocEngine.from_plan, plan, announce)
    engine, text = await asyncio.gather(loading, asyncio.to_thread(load_text_side, plan, cache_dir()))
    client.use_text(text)
    health = Health(state=EngineState.READY, reason="")

    def on_event(event: EngineEvent) -> None:
        if isinstance(event, Fatal):
            health.state, health.reason = EngineState.FAILED, event.error
            client.closed_reason = event.error
            client.fail_all(event.error)
        else:
            client.on_event(event)

    link = ThreadLink(engine, on_event)
    client.attach(link)
    client.closed_reason = None
    try:
        yield make_app(make_state(plan, client, metrics, health, text.tokenizer))
    finally:
        await asyncio.to_thread(link.close)
