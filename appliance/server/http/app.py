"""The ASGI application of one server."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import quote

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from appliance.requests.degraded import begin as begin_notes
from appliance.requests.errors import ApiError, as_api_error, internal_error, invalid
from appliance.server.http import degraded
from appliance.server.http.bodies import IGNORED_FIELDS
from appliance.server.http.errors import error_response
from appliance.server.http.gate import Gate, route_path
from appliance.server.http.misses import Misses
from appliance.server.http.openapi import document
from appliance.server.http.plugins import wrapped
from appliance.server.http.routes import ROUTES, Route, error_shape
from appliance.server.http.tracing import note_arrival
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError


def make_app(state: ServerState) -> ASGIApp:
    """Makes the application: the gate, the routes of the table after it, and CORS before it if origins are planned."""
    http, routes = state.plan.serving.http, state.plan.serving.routes
    served = [route for route in ROUTES if route.is_served(routes)]
    if routes.docs or routes.offline_docs:
        state = replace(state, document=document(served, has_keys=not state.keys.is_open))
    api = FastAPI(redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None)  # our own need no internet
    for route in served:
        endpoint = _endpoint(state, route)
        name = route.handler.__name__
        methods = [*route.methods, "HEAD"] if "GET" in route.methods else list(route.methods)
        api.add_api_route(route.path, endpoint, methods=methods, name=name, response_model=None)
    api.add_exception_handler(HTTPException, _missed(Misses(served)))
    api.add_exception_handler(Exception, _internal_error)
    app: ASGIApp = Gate(wrapped(api, http.middleware), state)
    if http.cors.origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(http.cors.origins),
            allow_methods=list(http.cors.methods),
            allow_headers=list(http.cors.headers),
            allow_credentials=http.cors.credentials,
            expose_headers=["x-request-id", "x-ignored-fields", degraded.HEADER, "retry-after"],
        )
    return app


def _endpoint(state: ServerState, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await answer(state, route, request)

    return endpoint


async def answer(state: ServerState, route: Route, request: Request) -> Response:
    """Calls the route's handler; refusals become responses in the route's own shape of errors."""
    begin_notes()
    if state.tracer is not None:
        note_arrival(route.path, request.headers)
    try:
        check_work(state, route)
        response = await route.handler(state, request)
    except ApiError as error:
        response = error_response(error, route.errors)
    except RequestFailedError as error:
        response = error_response(as_api_error(error), route.errors)
    if (ignored := request.scope.get(IGNORED_FIELDS)) is not None:
        response.headers["x-ignored-fields"] = ",".join(quote(name, safe="[].") for name in ignored)
    if route.auth == "key" and "POST" in route.methods:
        degraded.tell(response, state.plan, state.metrics)
    return response


def check_work(state: ServerState, route: Route) -> None:
    """Raises ApiError 400 on a route whose work the model does not do."""
    model = state.plan.model
    if route.does == "generate" and model.pooling is not None:
        routes = "/v1/embeddings" if model.task == "embed" else "/classify, /score and /rerank"
        message = f"the model {model.served_names[0]} is served to {model.task} and answers no prompts; see {routes}"
        raise invalid("model", message, "unsupported_task")
    if route.does == "pool" and model.pooling is None:
        message = (
            f"the model {model.served_names[0]} is served to generate; this route is for models that embed, classify or"
            " score (model.task)"
        )
        raise invalid("model", message, "unsupported_task")


def _missed(misses: Misses) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def missed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return misses.answer(request.method, route_path(request.scope), error)

    return missed


async def _internal_error(request: Request, error: Exception) -> Response:
    """The gate, to which the error goes on, logs it."""
    return error_response(internal_error(), error_shape(route_path(request.scope)))
