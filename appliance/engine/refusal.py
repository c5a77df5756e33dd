"""The key of a request and its refusal, shared by the scheduler and the grammar gate."""

from appliance.engine.messages import ErrorKind

RequestKey = tuple[bytes, str]  # (client, request id)


class Refusal(Exception):  # noqa: N818 - an answer to one request, not an error of the engine
    """One request is refused. `field` names the request's field to blame, if any."""

    def __init__(self, kind: ErrorKind, field: str | None, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field
