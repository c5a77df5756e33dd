"""Traces over OTLP, read by a collector on a socket of its own."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from appliance.base.errors import ApplianceError
from appliance.engine.messages import SamplingParams
from appliance.engine.scripted import Script
from appliance.engine.time_messages import PartSeconds, RequestTimes
from appliance.plan.serving_types import TracesPlan
from appliance.server.http.tracing import tracer_for
from appliance.service.policy import OpenPolicy
from appliance.service.requests import TextRequest
from tests.server.harness import Server, chat_prompt, encode, running, says, wait_until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"
Parts = tuple[Literal["scheduler", "forward", "execute"], ...]
IN = "gen_ai.latency.time_in_"
REPLIES = [says("greet", "hello world"), says("stop", "one STOP two")]


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent. `traces`: how a plan names it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: set[str] = set()
        self.services: set[str] = set()
        self.spans: list[Span] = []

    def traces(self, ratio: float = 1.0, parts: Parts = ()) -> TracesPlan:
        url = f"http://127.0.0.1:{self.server_address[1]}/v1/traces"
        return TracesPlan(endpoint=url, sampling_ratio=ratio, service_name="coder", parts=parts)

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def below(self, span: Span) -> dict[str, Span]:
        return {each.name: each for each in self.spans if each.parent_span_id == span.span_id}


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.paths.add(self.path)
        for resource in body.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.server.services.add(names["service.name"])
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def chat(user: str = "greet", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": user}], **more}


def end(server: Server) -> None:
    """Ends the server; its last spans are sent before."""
    server.terminate()
    assert server.process.wait(20) == 0, server.log.read_text()


def test_a_request_is_a_span_with_its_phases(tmp_path: Path) -> None:
    with collecting() as collector:
        with running(tmp_path, Script(replies=REPLIES), traces=collector.traces()) as server, server.http() as http:
            body = chat(temperature=0.5, seed=7, max_tokens=9)
            http.post("/v1/chat/completions", json=body, headers={"traceparent": CALLER, "tracestate": "a=b"})
            end(server)
        (root,) = collector.roots()
        found, phases = attributes(root), collector.below(root)
    assert (collector.paths, collector.services) == ({"/v1/traces"}, {"coder"})
    assert root.name == "chat scripted"
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == tuple(CALLER.split("-")[1:3])
    assert root.trace_state == "a=b"
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "appliance", "http.route": "/v1/chat/completions",
        "gen_ai.request.model": "scripted", "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 9, "gen_ai.request.choice.count": 1, "gen_ai.output.type": "text",
        "gen_ai.usage.input_tokens": len(encode(chat_prompt("greet"))), "gen_ai.response.finish_reasons": ["stop"],
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert found["gen_ai.usage.output_tokens"] == len(encode("hello world")) + 1
    assert "hello" not in str(root)
    assert 0 < found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    assert set(phases) == {"queue", "prefill", "decode"}
    assert root.start_time_unix_nano == phases["queue"].start_time_unix_nano
    assert phases["queue"].end_time_unix_nano == phases["prefill"].start_time_unix_nano
    assert phases["prefill"].end_time_unix_nano == phases["decode"].start_time_unix_nano
    queued_ns = phases["queue"].end_time_unix_nano - phases["queue"].start_time_unix_nano
    assert found["gen_ai.latency.time_in_queue"] == pytest.approx(queued_ns / 1e9, abs=1e-6)
    assert found["gen_ai.latency.time_in_model_decode"] > 0


def test_the_parts_of_the_engine_are_in_the_spans_of_the_phases(tmp_path: Path) -> None:
    """Each step of the script takes 20 ms, all of them in the call of the model."""
    script = Script(replies=REPLIES, step_seconds=0.02)
    with collecting() as collector:
        traces = collector.traces(parts=("scheduler", "forward", "execute"))
        with running(tmp_path, script, traces=traces) as server, server.http() as http:
            assert http.post("/v1/chat/completions", json=chat()).status_code == 200
            end(server)
        (root,) = collector.roots()
        whole = attributes(root)
        phases = {name: attributes(span) for name, span in collector.below(root).items()}
    num_steps = len(encode("hello world")) + 1  # the first token comes with the prompt
    assert 0.02 * num_steps <= whole[IN + "model_forward"] <= whole[IN + "model_execute"] < whole["gen_ai.latency.e2e"]
    assert 0 < whole[IN + "scheduler"] < 0.02
    assert phases["queue"] == {}
    for name in ("scheduler", "model_forward", "model_execute"):
        assert phases["prefill"][IN + name] + phases["decode"][IN + name] == pytest.approx(whole[IN + name])
    assert 0.02 <= phases["prefill"][IN + "model_forward"] < phases["decode"][IN + "model_forward"]


def test_an_engine_that_runs_measures_the_parts_that_are_asked_for_now() -> None:
    with collecting() as collector:
        old = tracer_for(collector.traces(), "scripted")
        new = tracer_for(collector.traces(parts=("execute",)), "scripted", old)
        assert old is not None
        assert new is not None
        _, meter = new.traced(OpenPolicy()).admit([request()])
        meter.timed(RequestTimes(0.5, 0.25, None, PartSeconds(0.1, 0.2, 0.3)))
        meter.close("stop")
        old.close()
        new.close()
        (root,) = collector.roots()
    assert {name for name in attributes(root) if name.startswith(IN + "model_e")} == {IN + "model_execute"}
    assert attributes(root)[IN + "model_execute"] == 0.3


def test_every_ending_ends_the_span(tmp_path: Path) -> None:
    """A stop string is found before the engine knows; a client may go away; an engine may die."""
    script = Script(replies=REPLIES, step_seconds=0.02, crash_at_step=400)
    with collecting() as collector:
        with running(tmp_path, script, traces=collector.traces()) as server, server.http() as http:
            http.post("/v1/chat/completions", json=chat("stop", stop=["STOP"]))
            http.post("/v1/completions", json={"model": "scripted", "prompt": ["ab", "cd"], "max_tokens": 3, "n": 2})
            http.post("/v1/chat/completions", json=chat("unknown", use_beam_search=True, n=2, max_tokens=2))
            endless = chat("unknown", stream=True, max_tokens=400)
            with http.stream("POST", "/v1/chat/completions", json=endless) as stream:
                next(stream.iter_lines())
            http.post("/v1/chat/completions", json=chat("unknown", max_tokens=480))
            wait_until(lambda: len(collector.roots()) == 5, "five spans", timeout_s=20.0)
        ends = [
            (span.name, attributes(span).get("error.type"), span.status.code, len(collector.below(span)))
            for span in collector.roots()
        ]
    unset, failed = Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR
    assert sorted(ends, key=str) == sorted(
        [
            ("chat scripted", None, unset, 3),
            ("text_completion scripted", None, unset, 3),
            ("chat scripted", None, unset, 0),
            ("chat scripted", "client_disconnected", unset, 3),
            ("chat scripted", "engine_error", failed, 3),
        ],
        key=str,
    )


def test_the_caller_decides_what_is_sampled_else_the_ratio(tmp_path: Path) -> None:
    with collecting() as collector:
        traces = collector.traces(ratio=1e-9)
        with running(tmp_path, Script(replies=REPLIES), traces=traces) as server, server.http() as http:
            for headers in ({}, {"traceparent": CALLER}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}):
                assert http.post("/v1/chat/completions", json=chat(), headers=headers).status_code == 200
            end(server)
        assert [span.trace_id.hex() for span in collector.roots()] == [CALLER.split("-")[1]]


def test_a_collector_that_is_gone_costs_no_request(tmp_path: Path) -> None:
    with collecting() as collector:
        traces = collector.traces()
    with running(tmp_path, Script(replies=REPLIES), traces=traces) as server, server.http() as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        end(server)
        assert "Traceback" not in server.log.read_text()


def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "appliance.server.http.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)


def test_without_the_extra_it_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    without_opentelemetry(monkeypatch)
    assert tracer_for(None, "scripted") is None
    traces = TracesPlan(endpoint="http://a/v1/traces", sampling_ratio=1.0, service_name="a")
    with pytest.raises(ApplianceError, match=r"pip install 'appliance\[otel\]'"):
        tracer_for(traces, "scripted")


def request() -> TextRequest:
    return TextRequest(request_id="a", prompt_token_ids=[1, 2], sampling=SamplingParams())


def test_other_settings_are_live_and_what_is_open_is_still_sent() -> None:
    with collecting() as first, collecting() as second:
        old = tracer_for(first.traces(), "scripted")
        assert old is not None
        _, meter = old.traced(OpenPolicy()).admit([request()])
        assert tracer_for(first.traces(), "scripted", old) is old
        new = tracer_for(second.traces(), "scripted", old)
        assert new is not None
        assert new is not old
        old.retire()
        _, other = new.traced(OpenPolicy()).admit([request()])
        for each in (other, meter):
            each.close("stop")
            each.timed(RequestTimes(0.5, 0.25))
        wait_until(first.roots, "the old tracer ends with its last span")
        new.close()
        (root,) = second.roots()
    assert attributes(root)["gen_ai.latency.time_in_queue"] == 0.5
    assert set(second.below(root)) == {"queue", "prefill"}
    assert len(first.roots()) == 1
