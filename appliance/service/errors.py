"""Why a request, or the engine that runs it, failed."""

from appliance.base.errors import ApplianceError
from appliance.engine.messages import ErrorKind


class RequestFailedError(ApplianceError):
    """One request failed. `kind` says whose fault it is; `field` names the parameter to blame, if one is.

    code: a word for programs, where `kind` does not say enough. retry_after_s: when it may be tried again.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        field: str | None = None,
        *,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field
        self.code = code
        self.retry_after_s = retry_after_s


class GroupOverError(ApplianceError):
    """A replica was given up with which others run their steps, so none of them can run."""
