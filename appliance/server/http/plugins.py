"""ASGI middleware of the operator's own, by dotted path. It runs after the gate and sees nothing that was refused."""

import inspect
from collections.abc import Callable, Sequence
from typing import Final

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp

from appliance.base.plugins import PluginError, load_plugin

FIELD: Final = "endpoints.http.middleware"


def wrapped(app: ASGIApp, paths: Sequence[str]) -> ASGIApp:
    """`app` inside the named middleware, the first outermost.

    A class is ASGI middleware (`Class(app)`); a coroutine function is HTTP middleware (`function(request, call_next)`).
    Raises PluginError for what cannot be imported or is neither.
    """
    for path in reversed(paths):
        found = load_plugin(path, FIELD)
        if isinstance(found, type):
            make: Callable[[ASGIApp], ASGIApp] = found
            app = make(app)
        elif inspect.iscoroutinefunction(found):
            app = BaseHTTPMiddleware(app, dispatch=found)
        else:
            raise PluginError(
                f"{FIELD}: {path} is neither a class nor a coroutine function",
                hint="class(app) with __call__(scope, receive, send), or async def f(request, call_next)",
            )
    return app
