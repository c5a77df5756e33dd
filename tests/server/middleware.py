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


class Failing:
    """Fails where the header x-fail says: before the application, in its handler, or in the midst of an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        where = dict(scope["headers"]).get(b"x-fail")
        if where == b"before":
            raise RuntimeError("a fault of the middleware")
        if where == b"handler":
            scope = {**scope, "headers": None}

        async def failing(message: Message) -> None:
            if where == b"midst" and message["type"] == "http.response.body":
                raise RuntimeError("a fault in the midst")
            await send(message)

        await self._app(scope, receive, failing)


async def refuse_teapots(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return Response(status_code=418) if "teapot" in request.headers else await call_next(request)
