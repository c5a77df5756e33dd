"""Reports in which ways an answer is degraded: a header and a counter. The kinds are those of catalog.degradations."""

from contextvars import ContextVar

from starlette.responses import Response

from appliance.base.log import fields, logger
from appliance.catalog.degradations import BY_KIND, DegradationKind
from appliance.plan.types import EnginePlan
from appliance.service.metrics import ServiceMetrics

_log = logger("server")

HEADER = "x-degraded"
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


def tell(response: Response, plan: EnginePlan, metrics: ServiceMetrics) -> None:
    """Names degraded forms in the headers of an answer; a refusal has none."""
    kinds = [*plan.degraded, *(_NOTED.get() or ())]
    if kinds and response.status_code < 400:
        response.headers[HEADER] = ", ".join(kinds)
        for kind in kinds:
            metrics.degraded(kind)
