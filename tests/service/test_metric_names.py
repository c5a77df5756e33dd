"""vLLM's metrics: each is offered under its name, or there is a reason why not."""

from appliance.service.metrics import METRICS

# Of the versions that the dashboards in use were made for; counters with their _total.
OFFERED = {
    "lora_requests_info", "engine_sleep_state",
    "num_requests_swapped", "cpu_cache_usage_perc",
    "num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc", "kv_cache_usage_perc",
    "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "time_to_first_token_seconds", "time_per_output_token_seconds",
    "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
    "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n",
    "request_params_max_tokens", "request_success_total", "iteration_tokens_total", "cache_config_info",
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
}  # fmt: skip
NOT_OFFERED = {
    "cpu_prefix_cache_hit_rate": "replaced by two counters, of which the rate can be had over any time",
    "gpu_prefix_cache_hit_rate": "replaced by two counters, of which the rate can be had over any time",
    "avg_prompt_throughput_toks_per_s": "rate() of prompt_tokens_total; it was deprecated",
    "avg_generation_throughput_toks_per_s": "rate() of generation_tokens_total; it was deprecated",
    "request_params_best_of": "best_of is n and a choice among its answers; it was removed",
    "time_in_queue_requests": "request_queue_time_seconds under another name; it was deprecated",
    "model_forward_time_milliseconds": "the profiler has it, operator by operator; it was deprecated",
    "model_execute_time_milliseconds": "the profiler has it, operator by operator; it was deprecated",
    "spec_decode_draft_acceptance_rate": "replaced by counters, of which the rate can be had over any time",
    "spec_decode_efficiency": "replaced by counters, of which the rate can be had over any time",
    "spec_decode_num_emitted_tokens_total": "accepted tokens and drafts, as each draft is followed by one more token",
}


def test_every_name_of_vllm_is_offered_or_has_a_reason() -> None:
    endings = {metric.name: "_total" if metric.kind == "counter" else "" for metric in METRICS}
    names = {name.removeprefix("vllm:") + endings[metric.name] for metric in METRICS for name in metric.vllm_names}
    assert names == OFFERED
    assert not OFFERED & set(NOT_OFFERED)
