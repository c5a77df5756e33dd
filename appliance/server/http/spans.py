"""Spans of requests, sent over OTLP: one a request, and below it the queue, the prefill and the decode.

Attributes are those of OpenTelemetry's conventions for generative AI, and under `gen_ai.latency` vLLM's. No span holds
a prompt, an answer or a key. This module needs the extra `otel`; see server.tracing.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from appliance import __version__
from appliance.engine.time_messages import PartSeconds, RequestTimes
from appliance.plan.serving_types import TracesPlan
from appliance.server.http.callers import owner
from appliance.server.http.tracing import ARRIVAL, Arrival
from appliance.service.policy import Meter, RequestPolicy
from appliance.service.requests import TextOutput, TextRequest

Attribute = str | bool | int | float | list[str]

_EXPORT_TIMEOUT_S: Final = 2.0  # of one export with its retries: a collector that is gone holds up no end of the server
_CHAT_ROUTES: Final = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
_NS: Final = 1_000_000_000
_OF_PART: Final = {
    "scheduler": "gen_ai.latency.time_in_scheduler",
    "forward": "gen_ai.latency.time_in_model_forward",
    "execute": "gen_ai.latency.time_in_model_execute",
}


class OtlpTracer:
    """Sends the spans of requests from a thread of its own. `settings` and `model_name` are for life."""

    def __init__(self, settings: TracesPlan, model_name: str) -> None:
        self.settings = settings
        self.model_name = model_name
        _route_logs()
        resource = Resource.create({"service.name": settings.service_name, "service.version": __version__})
        sampler = ParentBased(TraceIdRatioBased(settings.sampling_ratio))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(settings.endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("appliance", __version__)
        self._num_open = 0
        self._is_retired = False

    def traced(self, rules: RequestPolicy) -> RequestPolicy:
        return TracedPolicy(rules, self)

    def start(self, arrival: Arrival, began_ns: int, attributes: dict[str, Attribute]) -> Span:
        """A request's span, below the caller's where `arrival` names one."""
        parent = TraceContextTextMapPropagator().extract(arrival.parent)
        name = f"{attributes['gen_ai.operation.name']} {self.model_name}"
        self._num_open += 1
        return self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=began_ns)

    def phase(self, name: str, parent: Context, start_ns: int, seconds: float, parts: PartSeconds | None = None) -> int:
        """A span below `parent`, with the seconds of the engine's parts; returns its end."""
        end_ns = start_ns + int(seconds * _NS)
        self._tracer.start_span(name, parent, attributes=self.of_parts(parts), start_time=start_ns).end(end_ns)
        return end_ns

    def of_parts(self, parts: PartSeconds | None) -> dict[str, Attribute]:
        """Returns the planned parts by vLLM's names."""
        planned = self.settings.parts if parts is not None else ()
        return {_OF_PART[name]: getattr(parts, name) for name in planned}

    def ended(self) -> None:
        """A span of `start` has ended."""
        self._num_open -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Other settings hold for new requests; what is open is still sent."""
        self._is_retired = True
        self._close_if_unused()

    def close(self) -> None:
        """Sends what is left; takes seconds if no collector listens."""
        self._provider.shutdown()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._num_open:
            threading.Thread(target=self.close, name="last spans", daemon=True).start()


class TracedPolicy:
    """Another policy, with a span for what it admits together. What it refuses has none."""

    def __init__(self, rules: RequestPolicy, tracer: OtlpTracer) -> None:
        self._rules = rules
        self._tracer = tracer

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        admitted, meter = self._rules.admit(requests)
        arrival = ARRIVAL.get() or Arrival("", {})
        began_ns = time.time_ns()
        span = self._tracer.start(arrival, began_ns, _attributes(arrival, admitted, self._tracer.model_name))
        if not span.is_recording():  # not sampled
            self._tracer.ended()
            return admitted, meter
        return admitted, _SpanMeter(meter, self._tracer, span, began_ns, len(admitted))


class _SpanMeter:
    """Ends the span when its requests have ended and the engine has sent their times."""

    def __init__(self, meter: Meter, tracer: OtlpTracer, span: Span, began_ns: int, num_requests: int) -> None:
        self._meter = meter
        self._tracer = tracer
        self._span = span
        self._began_ns = began_ns
        self._num_untimed = num_requests
        self._times: list[RequestTimes] = []
        self._first_ns: int | None = None
        self._num_tokens = self._num_cached_tokens = 0
        self._finished: dict[int, str] = {}
        self._end: tuple[str, int] | None = None

    def add(self, output: TextOutput) -> None:
        self._meter.add(output)
        if self._first_ns is None and output.token_ids:
            self._first_ns = time.time_ns()
        self._num_tokens += len(output.token_ids)
        self._num_cached_tokens += output.num_cached_tokens
        if output.finish_reason is not None:
            self._finished[output.index] = output.finish_reason

    def timed(self, times: RequestTimes | None) -> None:
        self._meter.timed(times)
        self._num_untimed -= 1
        if times is not None:
            self._times.append(times)
        self._end_if_known()

    def close(self, reason: str) -> None:
        self._meter.close(reason)
        self._end = reason, time.time_ns()
        self._end_if_known()

    def _end_if_known(self) -> None:
        if self._end is None or self._num_untimed:
            return
        reason, end_ns = self._end
        self._phases()
        self._span.set_attributes(self._outcome(end_ns))
        if reason in ("error", "abort"):
            self._span.set_attribute("error.type", "client_disconnected" if reason == "abort" else "engine_error")
        if reason == "error":
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(end_ns)
        self._tracer.ended()

    def _phases(self) -> None:
        """The engine's durations, one after another from the arrival: its clock is not ours."""
        below = set_span_in_context(self._span)
        for times in self._times:
            at_ns = self._tracer.phase("queue", below, self._began_ns, times.queue_s)
            if times.prefill_s is not None:
                at_ns = self._tracer.phase("prefill", below, at_ns, times.prefill_s, times.prefill_parts)
            if times.decode_s is not None:
                self._tracer.phase("decode", below, at_ns, times.decode_s, times.decode_parts)

    def _outcome(self, end_ns: int) -> dict[str, Attribute]:
        """Returns the attributes of the outcome; of several requests the longest times."""
        found: dict[str, Attribute] = {
            "gen_ai.usage.output_tokens": self._num_tokens,
            "gen_ai.usage.cache_read.input_tokens": self._num_cached_tokens,
            "gen_ai.response.finish_reasons": [self._finished[index] for index in sorted(self._finished)],
            "gen_ai.latency.e2e": (end_ns - self._began_ns) / _NS,
        }
        if self._first_ns is not None:
            first_s = (self._first_ns - self._began_ns) / _NS
            found["gen_ai.response.time_to_first_chunk"] = found["gen_ai.latency.time_to_first_token"] = first_s
        for name in ("queue", "prefill", "decode"):
            seconds = [value for times in self._times if (value := getattr(times, f"{name}_s")) is not None]
            if seconds:
                found[f"gen_ai.latency.time_in_{'queue' if name == 'queue' else f'model_{name}'}"] = max(seconds)
        parts = [whole for times in self._times if (whole := times.parts) is not None]
        return found | self._tracer.of_parts(max(parts, key=lambda each: each.execute, default=None))


def _attributes(arrival: Arrival, requests: Sequence[TextRequest], model_name: str) -> dict[str, Attribute]:
    """Returns what is known before the answer. Sampling is the first request's: those of one HTTP request share it."""
    first = requests[0]
    sampling = first.sampling
    found: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat" if arrival.route in _CHAT_ROUTES else "text_completion",
        "gen_ai.provider.name": "appliance",
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.request.id": first.request_id,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": sum(request.sampling.n for request in requests),
        "gen_ai.output.type": "text" if first.constraint is None else "json",
        "gen_ai.usage.input_tokens": sum(len(request.prompt_token_ids) for request in requests),
    }
    given: dict[str, Attribute | None] = {
        "http.route": arrival.route or None,
        "appliance.key": owner() or None,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.seed": sampling.seed,
    }
    return found | {name: value for name, value in given.items() if value is not None}


def _route_logs() -> None:
    """OpenTelemetry's warnings, of a collector that does not answer, look like ours."""
    theirs = logging.getLogger("opentelemetry")
    theirs.handlers[:] = logging.getLogger("appliance").handlers
    theirs.propagate = False
