"""Pass `serving`: what the front ends read. Everything here can change while the engine runs."""

from typing import Any

from appliance.plan.frontend import plan_front, plan_traces
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger, strictness_of
from appliance.plan.parsers import plan_parsers
from appliance.plan.structured import plan_structured
from appliance.plan.types import GatePlan, ModelPlan, RestartPlan, ServingPlan
from appliance.spec.data import as_data


def plan_serving(inputs: PlanInputs, model: ModelPlan, ledger: Ledger) -> ServingPlan:
    spec = inputs.spec
    http, limits, responses = spec.endpoints.http, spec.endpoints.limits, spec.endpoints.responses
    logs, store = spec.observability.logs, spec.endpoints.store
    return ServingPlan(
        host=http.host,
        port=http.port,
        root_path=http.root_path,
        apis=tuple(spec.endpoints.apis),
        key_hashes={key.name: key.hash for key in spec.endpoints.auth.keys},
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        max_headers=limits.max_headers,
        max_n=limits.max_n,
        keep_alive_s=http.keep_alive,
        shutdown_timeout_s=spec.shutdown.timeout,
        cors_origins=tuple(spec.endpoints.cors.allowed_origins),
        request_id_headers=http.enable_request_id_headers,
        enable_docs=http.enable_docs,
        server_load_tracking=http.enable_server_load_tracking,
        force_include_usage=responses.enable_force_include_usage,
        prompt_tokens_details=responses.enable_prompt_tokens_details,
        return_tokens_as_token_ids=responses.return_tokens_as_token_ids,
        log_level=logs.level,
        log_requests=logs.enable_log_requests,
        max_log_len=logs.max_log_len,
        metrics=spec.observability.metrics.enabled,
        response_role=spec.model.response_role,
        structured=plan_structured(inputs, ledger),
        parsers=plan_parsers(inputs, model.chat_template, ledger),
        front=plan_front(inputs),
        trust_request_chat_template=spec.model.trust_request_chat_template,
        parse_message_tokens=spec.model.special_tokens_in_messages == "parse",
        tokenizer_info=http.enable_tokenizer_info_endpoint,
        shed_above_s=_shed_above_s(inputs),
        gate=_plan_gate(inputs, model.max_model_len, ledger),
        unknown_fields=strictness_of(spec, "ignored_field"),
        truncated_prompts=strictness_of(spec, "truncated_prompt"),
        traces=plan_traces(inputs),
        store_dir=store.dir,
        store_max_bytes=store.max_bytes,
        store_max_files=store.max_files,
        store_max_batches=store.max_batches,
        store_lifetime_s=store.file_lifetime,
        max_responses=store.max_responses,
        max_response_bytes=store.max_response_bytes,
    )


def plan_restart(inputs: PlanInputs) -> RestartPlan:
    spec = inputs.spec.restart
    return RestartPlan(
        policy=spec.policy,
        max_restarts=spec.max_restarts,
        window_s=spec.window,
        backoff_s=spec.backoff,
        heartbeat_timeout_s=spec.heartbeat_timeout,
    )


def plan_slo(inputs: PlanInputs) -> dict[str, float]:
    """Bounds in seconds by name, only those that are promised."""
    targets = as_data(inputs.spec.slo)
    del targets["shed_factor"], targets["gate"]
    return {name: bound for name, bound in targets.items() if bound is not None}


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


def _shed_above_s(inputs: PlanInputs) -> float | None:
    """So many times the loosest bound of the first token: some may miss a lower percentile's, by its meaning."""
    slo = inputs.spec.slo
    bounds = [bound for bound in (slo.ttft_p50, slo.ttft_p90, slo.ttft_p95, slo.ttft_p99) if bound is not None]
    return round(slo.shed_factor * max(bounds), 4) if slo.shed_factor is not None and bounds else None


def plan_batch(inputs: PlanInputs, max_num_seqs: int) -> dict[str, Any]:
    """The spec's fields; `max_concurrency` is a number."""
    values: dict[str, Any] = as_data(inputs.spec.batch)
    del values["metrics"], values["output_tmp_dir"]
    if values["max_concurrency"] == "auto":
        values["max_concurrency"] = 2 * max_num_seqs
    return values


def plan_bench(inputs: PlanInputs) -> dict[str, Any]:
    values: dict[str, Any] = as_data(inputs.spec.bench)
    return values
