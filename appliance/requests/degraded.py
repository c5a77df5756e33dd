"""Notes in which ways an answer is degraded. The kinds are those of catalog.degradations."""

from contextvars import ContextVar

from appliance.base.log import fields, logger
from appliance.catalog.degradations import BY_KIND, DegradationKind

_log = logger("service")

_NOTED: ContextVar[list[DegradationKind] | None] = ContextVar("degraded", default=None)


def begin() -> None:
    """Begins the notes of the request that is handled now; tasks that its handler starts share them."""
    _NOTED.set([])


def note(kind: DegradationKind, *, is_logged: bool) -> None:
    """Notes that the answer to this request is degraded in this way."""
    if (noted := _NOTED.get()) is not None and kind not in noted:
        noted.append(kind)
    if is_logged:
        _log.warning("a request is answered in a lesser form", extra=fields(kind=kind, what=BY_KIND[kind].what))


def noted() -> tuple[DegradationKind, ...]:
    """Returns what was noted of this request."""
    return tuple(_NOTED.get() or ())
