"""The tracer of a plan, and what a trace needs from the HTTP request. OpenTelemetry is loaded only for traces."""

import importlib
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import Headers

from appliance.base.errors import ApplianceError
from appliance.plan.serving_types import TracesPlan
from appliance.service.policy import RequestPolicy

_PARENT_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


class Tracer(Protocol):
    """Sends spans of requests; `settings` and `model_name` stay as they were made."""

    settings: TracesPlan
    model_name: str

    def traced(self, rules: RequestPolicy) -> RequestPolicy:
        """Returns a policy that follows `rules` and records the spans of a request."""

    def retire(self) -> None:
        """Takes no new requests; what is open is still sent."""

    def close(self) -> None:
        """Sends what is left; takes seconds where no collector listens."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The HTTP request of what is about to be generated. parent: its headers that name the caller's span."""

    route: str
    parent: dict[str, str]


ARRIVAL: ContextVar[Arrival | None] = ContextVar("arrival", default=None)
"""Set where traces are planned; tasks that a handler starts inherit it."""


def note_arrival(route: str, headers: Headers) -> None:
    ARRIVAL.set(Arrival(route, {name: headers[name] for name in _PARENT_HEADERS if name in headers}))


def tracer_for(settings: TracesPlan | None, model_name: str, former: Tracer | None = None) -> Tracer | None:
    """Returns a tracer; None if no traces are planned, and `former` if it has the same settings.

    Raises ApplianceError where OpenTelemetry is not installed.
    """
    if settings is None:
        return None
    if former is not None and (former.settings, former.model_name) == (settings, model_name):
        return former
    try:
        spans = importlib.import_module("appliance.server.http.spans")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = f"observability.traces needs OpenTelemetry, and {error.name} is not installed"
        hint = "pip install 'appliance[otel]', or remove observability.traces"
        raise ApplianceError(f"{message}; {hint}", hint=hint) from error
    tracer: Tracer = spans.OtlpTracer(settings, model_name)
    return tracer
