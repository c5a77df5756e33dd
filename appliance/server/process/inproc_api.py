"""The server's API on engines of this process, without sockets, for batches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from starlette.types import ASGIApp

from appliance.base.environ import cache_dir
from appliance.plan.serving_types import AuthPlan, CorsPlan, ServingPlan
from appliance.plan.types import EnginePlan
from appliance.server.http.app import make_app
from appliance.server.state import make_state
from appliance.service.exporting import Exporters, figures_of
from appliance.service.local_engines import Announce, local_engines
from appliance.service.metrics import ServiceMetrics
from appliance.service.text_side import load_text_side


@asynccontextmanager
async def inproc_api(plan: EnginePlan, announce: Announce) -> AsyncIterator[ASGIApp]:
    """Loads the planned model, in this process or in one for each replica, and yields the application. It cannot be
    reached from outside, so it needs no API keys.

    Raises ApplianceError or ValueError if loading fails.
    """
    plan = msgspec.structs.replace(plan, serving=_within(plan.serving))
    metrics = ServiceMetrics(plan.model.served_names[0])
    text = load_text_side(plan, cache_dir())
    async with local_engines(plan, text, metrics, announce) as engines:
        metrics.describe(plan)
        state = make_state(plan, engines.client, metrics, engines.health, text.tokenizer)
        exporters = Exporters(plan.serving.exporters)
        exports = asyncio.create_task(exporters.run(partial(figures_of, metrics)), name="exports")
        try:
            yield make_app(state)
        finally:
            exports.cancel()
            await state.tools.close()
            if state.tracer is not None:
                await asyncio.to_thread(state.tracer.close)


def _within(serving: ServingPlan) -> ServingPlan:
    """Leaves out what is for clients of a network: keys, hosts, origins, middleware, logs of answers, shedding."""
    replace = msgspec.structs.replace
    return replace(
        serving,
        routes=replace(serving.routes, metrics=True),
        http=replace(serving.http, allowed_hosts=(), cors=CorsPlan(), middleware=()),
        auth=AuthPlan(key_hashes={}),
        logs=replace(serving.logs, config_file=None, log_outputs=False, access_log=False),
        shed_above_s=None,
    )
