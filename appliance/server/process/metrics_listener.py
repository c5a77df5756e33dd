"""A listener of /metrics alone, beside work that has no server: a batch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.plan.serving_types import ListenPlan, ServingPlan
from appliance.server.http.listen import bind, release
from appliance.server.process.running import QuietServer, uvicorn_config

PATH = "/metrics"


@asynccontextmanager
async def metrics_listener(api: ASGIApp, serving: ServingPlan, host: str, port: int) -> AsyncIterator[None]:
    """Serves GET /metrics of an application at an address, and nothing else of it, until the context ends. serving:
    the bounds of its connections. Raises AddressError."""
    listen = ListenPlan(host=host, port=port)
    listener = bind(listen)
    try:
        server = QuietServer(uvicorn_config(serving, only_metrics(api)))
        serves = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serves
    finally:
        release(listener, listen)


def only_metrics(api: ASGIApp) -> ASGIApp:
    """Returns an application that passes on what asks for metrics, and answers 404 to everything else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] in ("GET", "HEAD"):
            await api(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(f"only {PATH} is served here\n", 404)(scope, receive, send)

    return app
