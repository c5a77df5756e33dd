"""The query of routes that change what engines do: nothing that it asks for is ignored."""

from starlette.requests import Request

from appliance.requests.errors import ApiError


def check_query(request: Request, *known: str) -> None:
    """Raises ApiError 400 for a parameter that the route has not, and for a body: these routes have queries alone. The
    empty object that some clients send is none."""
    if unknown := [name for name in request.query_params if name not in known]:
        allowed = f"has {', '.join(known)}" if known else "has none"
        raise ApiError(400, f"{request.url.path} has no parameter {unknown[0]!r}; it {allowed}", param=unknown[0])
    length = int(request.headers.get("content-length", "0"))  # the protocol has checked it
    if length > len("{}") or "transfer-encoding" in request.headers:
        raise ApiError(400, f"{request.url.path} reads no body: its parameters are in the query")
