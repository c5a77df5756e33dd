"""The errors of the Python API. Each is a Python error of its kind too, and its hint is a note of the traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from appliance.base.errors import ApplianceError, DiagnosedError
from appliance.engine.messages import ErrorKind
from appliance.requests.errors import ApiError
from appliance.service.errors import RequestFailedError


class InvalidRequestError(ApplianceError, ValueError):
    """A request is wrong. `param` names what is to blame, in the words of the server's API."""

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ClosedError(ApplianceError, RuntimeError):
    """The engine was closed, or belongs to another process."""


class NotHereError(ApplianceError, NotImplementedError):
    """Something of vLLM's API that this one does not have."""


class TraceError(ApplianceError, OSError):
    """A trace cannot be written to the folder that is planned for it."""


@contextmanager
def told() -> Iterator[None]:
    """Makes errors of a request Python's, and adds the hints of others to their tracebacks."""
    try:
        yield
    except ApiError as error:
        raise InvalidRequestError(error.message, param=error.param) from error
    except RequestFailedError as error:
        if error.kind in (ErrorKind.INVALID, ErrorKind.NOT_FOUND):
            raise InvalidRequestError(str(error), param=error.field) from error
        raise
    except DiagnosedError as error:
        error.add_note(error.report())
        raise
    except ApplianceError as error:
        if error.hint and not hasattr(error, "__notes__"):
            error.add_note(f"hint: {error.hint}")
        raise
