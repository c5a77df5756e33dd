"""ASGI middleware of the operator's own, by dotted path. It runs after the gate and sees nothing that was refused."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp

from appliance.base.errors import ApplianceError


def wrapped(app: ASGIApp, paths: Sequence[str]) -> ASGIApp:
    """`app` inside the named middleware, the first outermost.

    A class is ASGI middleware (`Class(app)`); a coroutine function is HTTP middleware (`function(request, call_next)`).
    Raises ApplianceError for what cannot be imported or is neither.
    """
    for path in reversed(paths):
        found: Any = _load(path)
        if isinstance(found, type):
            make: Callable[[ASGIApp], ASGIApp] = found
            app = make(app)
        elif inspect.iscoroutinefunction(found):
            app = BaseHTTPMiddleware(app, dispatch=found)
        else:
            raise ApplianceError(
                f"endpoints.http.middleware: {path} is neither a class nor a coroutine function",
                hint="class(app) with __call__(scope, receive, send), or async def f(request, call_next)",
            )
    return app


def _load(path: str) -> Any:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "it must be installed beside the server, or on PYTHONPATH"
        raise ApplianceError(f"endpoints.http.middleware: {path} cannot be imported: {error}", hint=hint) from error
