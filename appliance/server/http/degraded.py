"""Tells in which ways an answer is degraded: a header and a counter."""

from starlette.responses import Response

from appliance.plan.types import EnginePlan
from appliance.requests.degraded import noted
from appliance.service.metrics import ServiceMetrics

HEADER = "x-degraded"


def tell(response: Response, plan: EnginePlan, metrics: ServiceMetrics) -> None:
    """Names degraded forms in the headers of an answer; a refusal has none."""
    kinds = [*plan.degraded, *noted()]
    if kinds and response.status_code < 400:
        response.headers[HEADER] = ", ".join(kinds)
        for kind in kinds:
            metrics.degraded(kind)
