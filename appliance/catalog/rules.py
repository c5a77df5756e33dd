"""Every rule that a diagnostic of the spec may name. Cross-field rules say where their check is."""

from typing import NamedTuple


class CrossFieldRule(NamedTuple):
    """`check` is a function of `appliance.spec.rules.<module>`."""

    id: str
    module: str
    check: str
    summary: str


READING: dict[str, str] = {
    "file/read": "The file can be read.",
    "file/encoding": "The file is UTF-8 text.",
    "yaml/syntax": "The text is YAML.",
    "yaml/character": "The text has no control characters.",
    "yaml/duplicate-key": "A key is written once in a mapping.",
    "yaml/several-documents": "One file holds one document.",
    "yaml/tag": "Only plain values; no tags that make objects.",
    "yaml/key": "Keys are plain words.",
    "yaml/alias": "An alias follows its anchor and does not hold itself.",
    "yaml/merge": "<< merges mappings.",
    "yaml/not-finite": "Numbers are finite.",
    "yaml/too-large": "The file is at most 1 MiB.",
    "yaml/too-deep": "At most 32 levels.",
    "yaml/too-many": "At most 50,000 values after aliases are followed.",
    "interpolation/form": "A reference is ${env:NAME}, ${env:NAME:?message} or ${file:path}.",
    "interpolation/env": "A named environment variable is set.",
    "interpolation/file": "A named file can be read.",
    "override/form": "--set takes path=value.",
    "override/path": "An override names a field, or an item of a list that is there.",
    "override/refused": "No override where the file says overrides: none.",
    "spec/empty": "The file holds a deployment.",
    "spec/not-a-mapping": "A deployment is a mapping.",
    "spec/missing": "Required fields are there.",
    "spec/too-many": "At most 200 errors are shown.",
    "spec/unknown-key": "Keys are known, or begin with x-.",
    "value/null": "A key has a value.",
    "value/type": "A value has its field's type.",
    "value/choice": "A value is one of its field's choices.",
    "value/range": "A number is in its field's range.",
    "value/format": "A text has its field's form.",
}

CROSS_FIELD: tuple[CrossFieldRule, ...] = tuple(
    CrossFieldRule(*row)
    for row in (
        ("model/mirrors-digest", "model", "mirrors_need_digest", "Mirrors need model.sha256."),
        ("model/served-names", "model", "served_names_differ", "Served names differ."),
        ("model/bitsandbytes", "model", "bitsandbytes_is_a_pair", "bitsandbytes is set in format and quantization."),
        ("model/gguf", "model", "gguf_is_gguf", "A .gguf source is loaded as GGUF."),
        ("model/skip-tokenizer", "model", "no_tokenizer_no_text", "No text settings without a tokenizer."),
        ("model/runner-task", "model", "runner_fits_task", "The runner can do the task."),
        ("model/max-logprobs", "model", "logprobs_limit", "max_logprobs is -1 or more."),
        ("model/rope-scaling", "model", "rope_scaling_is_complete", "rope_scaling has a known type and its factor."),
        ("model/revision", "model", "revision_has_a_hub", "Only a hub source has a revision."),
        ("loading/sharded-lora", "model", "sharded_state_has_no_adapters", "sharded_state excludes adapters."),
        ("loading/offline-mirrors", "model", "offline_mirrors_are_local", "Offline loading has no remote mirrors."),
        ("memory/cache-size-once", "memory", "kv_cache_is_said_once", "The cache's size is said once."),
        ("memory/no-cache", "memory", "kv_cache_is_not_empty", "There is a KV cache."),
        ("memory/offload", "memory", "offload_needs_a_device", "Offload needs an accelerator."),
        ("memory/swap", "memory", "swap_needs_space", "Preemption by swap needs swap_space."),
        ("memory/sleep", "memory", "sleep_needs_a_device", "Sleep mode needs an accelerator."),
        ("hardware/threads", "memory", "binding_fits_threads", "CPU lists fit the ranks and threads."),
        ("cache/context", "memory", "blocks_hold_the_context", "The blocks hold one full sequence."),
        ("cache/block-size", "memory", "block_size_fits_device", "The block size fits the device."),
        ("cache/dtype", "memory", "kv_dtype_fits_device", "The cache's type fits the device."),
        ("cache/scales", "memory", "kv_scales_need_fp8", "Scales are for fp8 caches."),
        ("cache/hash", "memory", "hash_needs_prefix_caching", "The block hash is for prefix caching."),
        ("compilation/eager", "memory", "eager_has_no_graphs", "enforce_eager excludes graph sizes."),
        ("scheduler/async", "scheduling", "async_is_exclusive", "Async scheduling excludes three features."),
        ("scheduler/budget", "scheduling", "budget_covers_sequences", "A step has a token for each sequence."),
        ("scheduler/whole-prompts", "scheduling", "whole_prompts_fit_a_step", "Unchunked prompts fit a step."),
        ("scheduler/partial", "scheduling", "partial_prefills_are_chunked", "Partial prefills need chunked prefill."),
        ("scheduler/long", "scheduling", "long_prompts_are_possible", "The long-prompt threshold is in the context."),
        ("parallelism/backend", "parallel", "one_process_is_one_rank", "uni runs one rank."),
        ("parallelism/hybrid", "parallel", "hybrid_balancing_is_complete", "Hybrid balancing has what it needs."),
        ("parallelism/ranks", "parallel", "ranks_are_in_range", "Ranks are below the number of replicas."),
        ("parallelism/experts", "parallel", "experts_need_ranks", "Expert settings build on each other."),
        ("parallelism/partition", "parallel", "stages_have_layers", "layer_partition has one entry a stage."),
        ("lora/cpu-slots", "adapters", "cpu_slots_cover_slots", "max_cpu_loras is at least max_loras."),
        ("lora/rank", "adapters", "adapters_fit_slots", "Adapters fit their slots."),
        ("lora/names", "adapters", "adapter_names_differ", "Adapter names differ, from each other and the model's."),
        ("speculative/window", "adapters", "lookup_window_is_ordered", "The n-gram window is ordered."),
        ("speculative/model", "adapters", "draft_model_fits_method", "Method and draft model fit."),
        ("speculative/num-tokens", "adapters", "number_of_proposals", "num_tokens is there when needed."),
        ("speculative/draft-ranks", "adapters", "draft_ranks", "The draft has 1 rank, or the target's."),
        ("speculative/pipeline", "adapters", "speculation_has_no_stages", "Speculation excludes pipeline stages."),
        ("speculative/posterior", "adapters", "posterior_needs_typical", "Posterior settings need typical acceptance."),
        ("decoding/tool-choice", "decoding", "tool_choice_needs_a_parser", "Auto tool choice needs a parser."),
        ("decoding/parser", "decoding", "parsers_are_known", "Parsers are known, or come with a plugin."),
        ("decoding/switches", "decoding", "switches_fit_backend", "Switches fit the structured-output back-end."),
        ("decoding/sampling", "decoding", "sampling_defaults_are_valid", "Sampling defaults are known and in range."),
        ("decoding/pattern", "decoding", "pattern_compiles", "The processor pattern is a regular expression."),
        ("kv-transfer/role", "decoding", "connector_needs_a_role", "A connector has a role."),
        ("kv-events/publisher", "decoding", "events_need_a_publisher", "Events have a publisher."),
        ("multimodal/cache", "decoding", "media_cache_is_on_or_off", "The media cache is on or off."),
        ("endpoints/public", "endpoints", "public_needs_keys", "A public address needs keys."),
        ("endpoints/socket", "endpoints", "socket_hides_port", "A Unix socket makes host and port meaningless."),
        ("endpoints/keys", "endpoints", "keys_differ", "Keys differ."),
        ("endpoints/tls", "endpoints", "certificate_has_a_key", "TLS files are complete."),
        ("endpoints/cors", "endpoints", "credentials_need_origins", "Credentials need listed origins."),
        ("endpoints/root-path", "endpoints", "root_path_is_a_path", "root_path is a path."),
        ("observability/traces", "endpoints", "traces_need_an_endpoint", "Detailed traces need an endpoint."),
        ("observability/outputs", "endpoints", "outputs_need_requests", "Logged outputs need logged requests."),
        ("slo/order", "endpoints", "percentiles_rise", "Higher percentiles have higher bounds."),
        ("restart/heartbeat", "endpoints", "heartbeat_leaves_time", "The heartbeat leaves time for a step."),
        ("batch/files", "work", "batch_files_differ", "Batch files differ."),
        ("bench/names", "work", "scenario_names_differ", "Scenario names differ."),
        ("bench/trace", "work", "trace_has_a_file", "A trace workload has a file."),
        ("bench/prefix", "work", "shared_prefix_has_a_length", "A shared prefix has a length."),
        ("bench/spread", "work", "lengths_spread_below_one", "Lengths stay above 0."),
        ("bench/kind", "work", "rates_are_for_serving", "Settings fit the kind of run."),
        ("bench/context", "work", "scenarios_fit_the_context", "Requests fit the context."),
    )
)

SUMMARIES: dict[str, str] = READING | {rule.id: rule.summary for rule in CROSS_FIELD}
