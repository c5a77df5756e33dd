"""Why a request or the engine behind it failed."""

from appliance.base.errors import ApplianceError
from appliance.engine.messages import ErrorKind


class RequestFailedError(ApplianceError):
    """One request failed. `kind` says whose fault it is; `field` names the parameter to blame, if one is."""

    def __init__(self, kind: ErrorKind, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field


class EngineStartError(ApplianceError):
    """The engine could not be started."""
