"""Errors as answers."""

import orjson
from starlette.responses import Response

from appliance.requests.errors import ApiError, ErrorShape


def error_response(error: ApiError, shape: ErrorShape = "openai") -> Response:
    """Returns the answer of an error, with its status and headers."""
    return Response(orjson.dumps(error.body(shape)), error.status, error.headers, media_type="application/json")
