"""What the scheduler and the gate of grammars share: the key of a request, and its refusal."""

from appliance.engine.messages import ErrorKind

RequestKey = tuple[bytes, str]  # (client, request id)


class Refusal(Exception):  # noqa: N818 - an answer to one request, not an error of the engine
    """One request is refused. `field` names the part of it that is to blame, if any."""

    def __init__(self, kind: ErrorKind, field: str | None, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.field = field
