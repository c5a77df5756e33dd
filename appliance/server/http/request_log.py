"""Requests and answers in the log, cut to a planned length. It stands where every API passes, so none is missed."""

from collections.abc import Sequence

from appliance.base.log import fields, logger
from appliance.engine.time_messages import RequestTimes
from appliance.plan.serving_types import LogsPlan, ServingPlan
from appliance.server.http.callers import CallerPolicy
from appliance.server.http.tracing import Tracer
from appliance.service.policy import Meter, RequestPolicy
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.service_client import ServiceClient
from appliance.service.shedding import SheddingPolicy
from appliance.text.tokenizer import Tokenizer

_log = logger("server")


def request_policy(
    serving: ServingPlan, tokenizer: Tokenizer, client: ServiceClient, tracer: Tracer | None = None
) -> RequestPolicy:
    """The rules of the callers' keys; where they are planned, the log, traces, and the refusal of what would wait too
    long."""
    rules: RequestPolicy = CallerPolicy(isolates_caches=serving.auth.isolate_caches)
    if serving.logs.log_requests:
        rules = RequestLog(rules, serving.logs, tokenizer)
    if tracer is not None:
        rules = tracer.traced(rules)
    return rules if serving.shed_above_s is None else SheddingPolicy(rules, client, serving.shed_above_s)


class RequestLog:
    """Another policy, with a line for each request that it admits and, if planned, for each answer."""

    def __init__(self, rules: RequestPolicy, logs: LogsPlan, tokenizer: Tokenizer) -> None:
        self._rules = rules
        self._most = logs.max_log_len
        self._logs_outputs = logs.log_outputs
        self._tokenizer = tokenizer

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        admitted, meter = self._rules.admit(requests)
        for request in admitted:
            text = self._tokenizer.decode(request.known_token_ids[: self._most])[: self._most]
            if request.prompt_embeds is not None:
                text = f"<{len(request.prompt_embeds)} embeddings>{text}"
            _log.info("request", extra=fields(id=request.request_id, prompt=text, sampling=repr(request.sampling)))
        return admitted, _AnswerLog(meter, admitted, self._most) if self._logs_outputs else meter


class _AnswerLog:
    """Keeps the beginning of each sequence's text until the end."""

    def __init__(self, meter: Meter, requests: Sequence[TextRequest], most: int | None) -> None:
        self._meter = meter
        self._ids = [request.request_id for request in requests]
        self._most = most
        self._texts: dict[int, str] = {}
        self._reasons: dict[int, str | None] = {}

    def add(self, output: TextOutput) -> None:
        self._meter.add(output)
        text = self._texts.get(output.index, "")
        if self._most is None or len(text) < self._most:
            self._texts[output.index] = (text + output.text)[: self._most]
        self._reasons[output.index] = output.finish_reason

    def timed(self, times: RequestTimes | None) -> None:
        self._meter.timed(times)

    def close(self, reason: str) -> None:
        self._meter.close(reason)
        for index, text in self._texts.items():
            finished = self._reasons[index] or "aborted"
            _log.info("answer", extra=fields(id=",".join(self._ids), index=index, text=text, finished=finished))
