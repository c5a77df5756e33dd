"""Every request passes the gate before its route: host, keys, draining, request ids, counts. Plain ASGI, for speed."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.base.log import logger
from appliance.requests.errors import ApiError, ErrorShape, internal_error
from appliance.server.http.access_log import AccessLine
from appliance.server.http.callers import CALLER
from appliance.server.http.chunks import close_short_way
from appliance.server.http.errors import error_response
from appliance.server.http.hosts import HostRule
from appliance.server.http.routes import PUBLIC_PATHS, ROUTES, error_shape, path_pattern
from appliance.server.state import ServerState
from appliance.service.metrics import ServiceMetrics

_log = logger("server")

_FIXED_PATHS = frozenset(route.path for route in ROUTES if "{" not in route.path)
_PATTERNS = [(path_pattern(route.path), route.path) for route in ROUTES if "{" in route.path]
_MAX_REQUEST_ID = 128


class Gate:
    """Refuses what may not enter; lets the rest through to `app`."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        serving = state.plan.serving
        self._hosts = HostRule(serving.http.allowed_hosts)
        self._logs_access = serving.logs.access_log
        self._has_middleware = bool(serving.http.middleware)
        self._echoes_request_id = serving.http.request_id_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = route_path(scope), Headers(scope=scope)
        if self._has_middleware:
            close_short_way(scope)  # it may look at every byte, or change it
        watched = self._watched(scope, send, path, headers)
        try:
            self._check(scope, path, headers)
        except ApiError as refusal:
            await error_response(refusal, error_shape(path))(scope, receive, watched)
        else:
            await self._pass(scope, receive, watched, error_shape(path))

    async def _pass(self, scope: Scope, receive: Receive, send: "_Answer", shape: ErrorShape) -> None:
        """Logs an error of the application once. In the middle of an answer uvicorn logs it, and cuts the answer."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if send.has_begun and not send.has_ended:
                raise
            _log.error("a request failed", exc_info=error)
            if not send.has_begun:
                await error_response(internal_error(), shape)(scope, receive, send)

    def _check(self, scope: Scope, path: str, headers: Headers) -> None:
        """Raises ApiError for what may not enter; else sets the caller for everything after the gate."""
        is_public = path in PUBLIC_PATHS
        self._hosts.check(scope, is_public=is_public)
        if is_public:
            return
        if not self._state.keys.is_open:
            caller = self._state.keys.find(headers)
            if caller is None:
                message = "a valid API key is needed: Authorization: Bearer <key>, or x-api-key"
                raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
            CALLER.set(caller)
            if scope["method"] == "POST":
                caller.count_request()
        if self._state.open.is_draining:
            raise ApiError(503, "the server is shutting down", code="unavailable", headers={"Connection": "close"})

    def _watched(self, scope: Scope, send: Send, path: str, request_headers: Headers) -> "_Answer":
        access = AccessLine(scope, path) if self._logs_access else None
        request_id = request_headers.get("x-request-id") if self._echoes_request_id else None
        return _Answer(send, self._state.metrics, _route_label(path), access, request_id)


class _Answer:
    """Sends one answer on, and knows how far it is."""

    __slots__ = ("_access", "_metrics", "_request_id", "_route", "_send", "has_begun", "has_ended")

    def __init__(
        self, send: Send, metrics: ServiceMetrics, route: str, access: AccessLine | None, request_id: str | None
    ) -> None:
        self._send = send
        self._metrics = metrics
        self._route = route
        self._access = access
        self._request_id = request_id
        self.has_begun = False
        self.has_ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._metrics.answered(self._route, message["status"])
            if (request_id := self._request_id) and len(request_id) <= _MAX_REQUEST_ID and request_id.isprintable():
                MutableHeaders(scope=message)["x-request-id"] = request_id
        else:
            self.has_ended = not message.get("more_body", False)
        await self._send(message)
        if self._access is not None:
            self._access.follow(message)


def route_path(scope: Scope) -> str:
    """The path below root_path, exactly as starlette's router finds it: the two must never disagree."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if root and path.startswith(root) and below[:1] in ("", "/") else path


def _route_label(path: str) -> str:
    """A name out of the route table, so that requests cannot make new series."""
    if path in _FIXED_PATHS:
        return path
    return next((label for pattern, label in _PATTERNS if pattern.fullmatch(path)), "other")
