"""Pass `serving`: what the front ends read. Everything here can change while the engine runs."""

from typing import Any

from appliance.plan.frontend import (
    plan_adapter_rules,
    plan_auth,
    plan_exporters,
    plan_http,
    plan_limits,
    plan_listen,
    plan_logs,
    plan_routes,
    plan_store,
    plan_traces,
)
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger, strictness_of
from appliance.plan.parsers import plan_parsers
from appliance.plan.restart import plan_engine_inside
from appliance.plan.serving_types import AnswersPlan, GatePlan, RequestsPlan, ServingPlan
from appliance.plan.structured import plan_structured
from appliance.plan.tool_servers import plan_tool_servers
from appliance.plan.types import ModelPlan
from appliance.spec.data import as_data

_OF_WHOLE_REQUESTS = "e2el"  # the one latency that answers without tokens have


def plan_serving(inputs: PlanInputs, model: ModelPlan, ledger: Ledger) -> ServingPlan:
    spec, responses = inputs.spec, inputs.spec.endpoints.responses
    return ServingPlan(
        listen=plan_listen(inputs),
        http=plan_http(inputs),
        routes=plan_routes(inputs),
        auth=plan_auth(inputs),
        limits=plan_limits(inputs),
        logs=plan_logs(inputs),
        store=plan_store(inputs),
        requests=RequestsPlan(
            unknown_fields=strictness_of(spec, "ignored_field"),
            truncated_prompts=strictness_of(spec, "truncated_prompt"),
            trust_request_chat_template=spec.model.trust_request_chat_template,
            parse_message_tokens=spec.model.special_tokens_in_messages == "parse",
        ),
        structured=plan_structured(inputs, ledger),
        parsers=plan_parsers(inputs, model.chat_template, ledger),
        tool_servers=plan_tool_servers(inputs, ledger),
        answers=AnswersPlan(
            response_role=spec.model.response_role,
            force_include_usage=responses.enable_force_include_usage,
            prompt_tokens_details=responses.enable_prompt_tokens_details,
            draft_metrics=responses.per_request_spec_decode_metrics == "summary",
            return_tokens_as_token_ids=responses.return_tokens_as_token_ids,
        ),
        adapters=plan_adapter_rules(inputs),
        exporters=plan_exporters(inputs),
        traces=plan_traces(inputs),
        api_servers=spec.endpoints.http.api_server_count,
        has_engine_inside=plan_engine_inside(inputs, ledger),
        shutdown_timeout_s=spec.shutdown.timeout,
        shed_above_s=_shed_above_s(inputs, model, ledger),
        gate=_plan_gate(inputs, model.max_model_len, ledger),
    )


def plan_slo(inputs: PlanInputs, model: ModelPlan, ledger: Ledger) -> dict[str, float]:
    """Returns bounds in seconds by name, only those that are promised. Refuses those that no answer can meet."""
    targets = as_data(inputs.spec.slo)
    del targets["shed_factor"], targets["gate"]
    promised = {name: bound for name, bound in targets.items() if bound is not None}
    for name in promised if model.pooling is not None else ():
        if not name.startswith(_OF_WHOLE_REQUESTS):
            message = f"the model pools, so its answers have no tokens whose times slo.{name} could bound"
            percentile = name.rpartition("_")[2]
            hint = f"write slo.{_OF_WHOLE_REQUESTS}_{percentile} in its place"
            ledger.refuse(f"slo.{name}", "plan/slo", message, allowed=f"{_OF_WHOLE_REQUESTS}_*", hint=hint)
    return promised


def _plan_gate(inputs: PlanInputs, max_model_len: int, ledger: Ledger) -> GatePlan | None:
    gate = inputs.spec.slo.gate
    if gate is None:
        return None
    if gate.input_len + gate.output_len > max_model_len:
        message = f"a request of the gate has {gate.input_len + gate.output_len} tokens, the context {max_model_len}"
        ledger.refuse("slo.gate.input_len", "plan/gate", message, hint="write a smaller input_len")
    return GatePlan(
        num_prompts=gate.num_prompts,
        max_concurrency=gate.max_concurrency,
        input_len=gate.input_len,
        output_len=gate.output_len,
    )


def _shed_above_s(inputs: PlanInputs, model: ModelPlan, ledger: Ledger) -> float | None:
    """Multiplies the loosest bound of the first token, or of whole requests where answers have no tokens: by definition
    some requests miss that of a lower percentile."""
    slo = inputs.spec.slo
    if slo.shed_factor is None:
        return None
    metric = "ttft" if model.pooling is None else _OF_WHOLE_REQUESTS
    stated = (getattr(slo, f"{metric}_p{percent}") for percent in (50, 90, 95, 99))
    bounds: list[float] = [bound for bound in stated if bound is not None]
    if not bounds:
        message = f"there is no {metric} bound to multiply"
        ledger.refuse("slo.shed_factor", "plan/slo", message, hint=f"write slo.{metric}_p95 as well")
        return None
    return round(slo.shed_factor * max(bounds), 4)


def plan_batch(inputs: PlanInputs, max_num_seqs: int) -> dict[str, Any]:
    """The spec's fields; `max_concurrency` is a number, and `num_replicas` None for as many as have room."""
    values: dict[str, Any] = as_data(inputs.spec.batch)
    if values["max_concurrency"] == "auto":
        values["max_concurrency"] = 2 * max_num_seqs
    if values["num_replicas"] == "auto":
        values["num_replicas"] = None
    return values


def plan_bench(inputs: PlanInputs) -> dict[str, Any]:
    values: dict[str, Any] = as_data(inputs.spec.bench)
    return values
