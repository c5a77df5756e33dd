"""Middleware as an operator would write it."""

from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOT_MIDDLEWARE = 1


class Stamp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-stamp"] = "1"
            await send(message)

        await self._app(scope, receive, stamped)


async def refuse_teapots(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return Response(status_code=418) if "teapot" in request.headers else await call_next(request)
