"""The ASGI application of one server."""

from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from appliance.base.log import logger
from appliance.jobs.lines import ENDPOINTS as BATCH_ENDPOINTS
from appliance.server.http import degraded
from appliance.server.http.absent import reason_for_absence
from appliance.server.http.bodies import IGNORED_FIELDS
from appliance.server.http.errors import ApiError, as_api_error
from appliance.server.http.gate import Gate
from appliance.server.http.openapi import document
from appliance.server.http.plugins import wrapped
from appliance.server.http.routes import ROUTES, Route, error_shape
from appliance.server.http.tracing import note_arrival
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError

_log = logger("server")


def make_app(state: ServerState) -> ASGIApp:
    """Routes of the table behind the gate, and CORS outside of it where origins are planned."""
    serving = state.plan.serving
    served = [route for route in ROUTES if route.is_served(serving)]
    if serving.enable_docs or serving.front.offline_docs:
        state.document = document(served, has_keys=not state.keys.is_open)
    api = FastAPI(redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)  # our own need no internet
    for route in served:
        endpoint = _endpoint(state, route)
        if route.path in BATCH_ENDPOINTS:
            state.batch_endpoints[route.path] = endpoint
        name = route.handler.__name__
        api.add_api_route(route.path, endpoint, methods=list(route.methods), name=name, response_model=None)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(Exception, _internal_error)
    front = serving.front
    app: ASGIApp = Gate(wrapped(api, front.middleware), state)
    if serving.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(serving.cors_origins),
            allow_methods=list(front.cors_methods),
            allow_headers=list(front.cors_headers),
            allow_credentials=front.cors_credentials,
            expose_headers=["x-request-id", "x-ignored-fields", degraded.HEADER, "retry-after"],
        )
    return app


def _endpoint(state: ServerState, route: Route) -> Any:
    answers = route.auth == "key" and "POST" in route.methods

    async def endpoint(request: Request) -> Response:
        degraded.begin()
        if state.tracer is not None:
            note_arrival(route.path, request.headers)
        try:
            response = await route.handler(state, request)
        except ApiError as error:
            response = error.response(route.errors)
        except RequestFailedError as error:
            response = as_api_error(error).response(route.errors)
        if (ignored := request.scope.get(IGNORED_FIELDS)) is not None:
            response.headers["x-ignored-fields"] = ",".join(quote(name, safe="[].") for name in ignored)
        if answers:
            degraded.tell(response, state.plan, state.metrics)
        return response

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method[:20]} {request.url.path[:200]}: {str(error.detail).lower()}"
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code)
    if error.status_code == 404 and (reason := reason_for_absence(request.method, request.scope["path"])) is not None:
        message, code = f"{message}; {reason}", "not_served"
    shape = error_shape(request.url.path)
    return ApiError(error.status_code, message, code=code, headers=error.headers).response(shape)


async def _internal_error(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, never to the client."""
    _log.error("a request failed", exc_info=error)
    message = "the server failed on this request; its log says why"
    return ApiError(500, message, code="internal_error").response(error_shape(request.url.path))
