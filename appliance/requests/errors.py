"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}; and in Anthropic's on its routes."""

from collections.abc import Mapping
from typing import Any, Literal

from appliance.engine.messages import ErrorKind
from appliance.engine.validation import InvalidSamplingError
from appliance.service.errors import RequestFailedError

RETRY_AFTER_S = 1

ErrorShape = Literal["openai", "anthropic"]

_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES: dict[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_STATUS: dict[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.OVERLOADED: 429,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.INTERNAL: 500,
}
_CODES: dict[ErrorKind, str] = {
    ErrorKind.NOT_FOUND: "model_not_found",
    ErrorKind.OVERLOADED: "overloaded",
    ErrorKind.UNAVAILABLE: "unavailable",
}
_RETRIED = frozenset({429, 503})


class ApiError(Exception):
    """An answer with a status of 400 or more. `param` is the field to blame, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if status in _RETRIED:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def body(self, shape: ErrorShape = "openai") -> dict[str, Any]:
        if shape == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """400 that names a field."""
    return ApiError(400, message, param=param, code=code)


def not_in_this_version(param: str, what: str | None = None) -> ApiError:
    return invalid(param, f"{what or param} is not in this version", "unsupported_parameter")


def internal_error() -> ApiError:
    """The traceback goes to the log, never to the client."""
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error")


def as_api_error(error: RequestFailedError | InvalidSamplingError) -> ApiError:
    if isinstance(error, InvalidSamplingError):
        return invalid(error.field, str(error), "invalid_value")
    code = error.code or _CODES.get(error.kind)
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else None
    return ApiError(_STATUS[error.kind], str(error), param=error.field, code=code, headers=headers)
