"""Another value for each field of the spec that a generic one does not fit, and why some change nothing."""

from dataclasses import dataclass

import msgspec

from appliance.base.hashing import sha256_json
from appliance.checkpoint.adapter import AdapterFacts, AdapterModule
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.modelling import Modelling, ModellingCode
from appliance.checkpoint.vocabulary import Likeness
from appliance.plan.inputs import DraftModelFiles
from appliance.spec import LoadedSpec

OPERATOR, OTHER = "operator-secret", "other-secret"


@dataclass(frozen=True, slots=True)
class Other:
    """`given`: what the spec says before and after; overrides as of `--set`."""

    value: str
    given: tuple[str, ...] = ()


OTHER_CODE = Modelling(
    version="5.0.0",
    of_transformers=ModellingCode(origin="transformers", model_class="LlamaForCausalLM", folder="/", files=()),
    of_checkpoint=ModellingCode(origin="checkpoint", model_class="modeling_x.X", folder="/", files=()),
)
SPECULATING = ("speculative={method: suffix}",)
DRAFTED = ("speculative={method: draft_model, model: ./draft}",)
ADAPTED = ("lora={adapters: [{name: one, source: ./one}]}",)
TRACED = ("observability.traces.otlp_traces_endpoint=http://127.0.0.1:9",)
SEVERAL_MACHINES = ("parallelism={data: 3, data_parallel_hybrid_lb: true, data_parallel_start_rank: 0, "
                    "data_parallel_size_local: 2}",)  # fmt: skip
LINKED = ("hardware.kernels.kernel_set=torch", "parallelism={tensor: 2, nnodes: 2, master_addr: 10.0.0.1}")
A_COMMAND, A_URL = "{name: s, command: [serve]}", "{name: s, url: 'http://a/mcp'}"
VALUES: dict[str, Other] = {
    "model.chat_template": Other("'{% for m in messages %}<{{ m.content }}>{% endfor %}'"),
    "model.model_impl": Other("transformers"),
    "model.trust_remote_code": Other("true", ("model.model_impl=transformers",)),
    "model.code_revision": Other("v1", ("model.model_impl=transformers", "model.trust_remote_code=true")),
    "model.tokenizer_mode": Other("slow"),
    "model.tokenizer_cls": Other(
        "tests.text.own_tokenizers.Letters",
        (
            "decoding.trust_plugins=true",
            "model={source: ./model, tokenizer_mode: custom, tokenizer_cls: tests.text.own_tokenizers.Lying}",
        ),
    ),
    "model.override_pooler_config": Other("{normalize: false}", ("model.convert=embed",)),
    "loading.load_format": Other("runai_streamer"),
    "loading.loader_cls": Other(
        "tests.checkpoint.own_loaders.Npz",
        ("decoding.trust_plugins=true", "loading={load_format: custom, loader_cls: tests.checkpoint.own_loaders.Lies}"),
    ),
    "loading.model_loader_extra_config": Other("{enable_multithread_load: true}"),
    "loading.max_parallel_loading_workers": Other("1", ("parallelism.tensor=2",)),
    "model.hf_overrides": Other("{rms_norm_eps: 0.001}"),
    "model.rope_scaling": Other("{rope_type: linear, factor: 2.0}"),
    "decoding.tool_parser": Other("hermes"),
    "decoding.logits_processor_pattern": Other("mine", ("decoding.trust_plugins=true",)),
    "decoding.reasoning_parser": Other("deepseek_r1"),
    "decoding.reasoning_parser_plugin": Other("tests.server.own_formats.THOUGHTS", ("decoding.trust_plugins=true",)),
    "decoding.logits_processors": Other("[tests.engine.processors.even]", ("decoding.trust_plugins=true",)),
    "decoding.logits_processor_timeout": Other("3s"),
    "decoding.enable_auto_tool_choice": Other("false", ("decoding.tool_parser=hermes",)),
    **{f"decoding.tool_server[].{name}": Other(value, (f"decoding.tool_server=[{each}]",)) for name, value, each in (
        ("name", "other", A_URL), ("command", "[other]", A_COMMAND), ("url", "'http://b/mcp'", A_URL),
        ("env", "{A: b}", A_COMMAND), ("headers", "{A: b}", A_URL), ("allowed_tools", "[a]", A_URL),
        ("timeout", "3s", A_URL), ("max_result_bytes", "1KiB", A_URL), ("max_calls", "3", A_URL),
    )},
    "degradations": Other("{ignored_field: allow}"),
    "hardware.kernels.disabled": Other("[cpu-avx2, cpu-avx512]"),
    "hardware.kernels.kernel_set": Other("cpu-generic"),
    "hardware.kernels.batch_invariant": Other("true", ("hardware.kernels.kernel_set=torch",)),
    "hardware.memory.kv_cache": Other("1MiB"),
    "hardware.cpu_omp_threads_bind": Other("'0'"),
    **{f"compilation.{name}": Other(value, ("hardware.kernels.kernel_set=torch",)) for name, value in (
        ("level", "0"), ("cudagraph_mode", "PIECEWISE"), ("enforce_eager", "true"),
        ("cudagraph_capture_sizes", "[1, 2]"),
        ("max_seq_len_to_capture", "1k"), ("max_cudagraph_capture_size", "16"), ("cuda_graph_sizes", "[32]"),
    )},
    "parallelism.nnodes": Other("2", (LINKED[0], "parallelism={tensor: 2, master_addr: 10.0.0.1}")),
    **{f"parallelism.{name}": Other(value, LINKED) for name, value in (
        ("master_addr", "10.0.0.2"), ("master_port", "29600"), ("join_timeout", "7s"),
    )},
    "parallelism.data_parallel_rank": Other("1", ("parallelism.data=2",)),
    "parallelism.data_parallel_size_local": Other("1", SEVERAL_MACHINES),
    "parallelism.data_parallel_start_rank": Other("1", SEVERAL_MACHINES),
    "model.enable_sleep_mode": Other("true"),
    "hardware.memory.swap_space": Other("1MiB"),
    "scheduler.preemption_mode": Other("recompute", ("hardware.memory.swap_space=1MiB",)),
    "decoding.override_generation_config": Other("{temperature: 0.5}"),
    "endpoints.http.root_path": Other("/below"),
    "endpoints.apis": Other("[openai]"),
    "endpoints.auth.keys[].hash": Other("'sha256:" + "1" * 64 + "'"),
    "endpoints.auth.keys[].models": Other("[base]"),
    "endpoints.auth.keys[].priority": Other("3", ("scheduler.policy=priority",)),
    "endpoints.http.middleware": Other("[tests.server.middleware.Stamp]", ("decoding.trust_plugins=true",)),
    "endpoints.tls.cert_reqs": Other("optional", ("endpoints.tls.ca_certs=./ca.pem",)),
    "observability.logs.enable_log_outputs": Other("true", ("observability.logs.enable_log_requests=true",)),
    "observability.metrics.exporters": Other(
        "[tests.server.own_exporters.hangs]", ("decoding.trust_plugins=true",)
    ),
    "observability.metrics.export_interval": Other("7s"),
    "observability.traces.sampling_ratio": Other("0.5", TRACED),
    "observability.traces.service_name": Other("other", TRACED),
    "observability.traces.collect_detailed_traces": Other("[worker]", TRACED),
    **{f"speculative.{name}": Other(value, SPECULATING) for name, value in (
        ("enabled", "false"), ("method", "ngram"), ("num_tokens", "3"), ("max_num_draft_tokens", "40"),
        ("adaptive", "false"), ("disable_by_batch_size", "5"), ("prompt_lookup_max", "4"), ("prompt_lookup_min", "2"),
        ("suffix_decoding_max_tree_depth", "8"), ("suffix_decoding_max_cached_requests", "9"),
        ("suffix_decoding_cache_size", "1MiB"), ("suffix_decoding_max_spec_factor", "2.5"),
        ("suffix_decoding_min_token_prob", "0.5"),
    )},
    "speculative.drafter": Other(
        "tests.engine.drafters.other",
        (
            "decoding.trust_plugins=true",
            "speculative={method: custom_class, drafter: tests.engine.drafters.repeat}",
        ),
    ),
    "speculative.num_draft_states": Other("auto", SPECULATING),
    "scheduler.scheduler_cls": Other("tests.engine.policies.Other", ("decoding.trust_plugins=true",)),
    "parallelism.worker_extension_cls": Other("tests.engine.extensions.Other", ("decoding.trust_plugins=true",)),
    **{f"speculative.{name}": Other(value, DRAFTED) for name, value in (
        ("model", "./other"), ("revision", "main"), ("quantization", "int8"), ("draft_kv_cache", "64KiB"),
        ("max_model_len", "64"),
    )},
    **{f"lora.{name}": Other(value, ADAPTED) for name, value in (
        ("max_loras", "3"), ("max_rank", "8"), ("dtype", "float32"), ("target_modules", "[o_proj]"),
        ("adapters[].name", "two"), ("adapters[].source", "./two"), ("adapters[].base_model_name", "parent"),
        ("adapters[].scale", "2.0"), ("adapters[].sha256", "0" * 64), ("adapters[].revision", "main"),
        ("adapters[].rank", "9"), ("adapters[].pinned", "true"), ("max_cpu_loras", "5"),
        ("allow_runtime_updating", "true"), ("allow_request_scale", "true"),
        ("runtime_paths", "[./adapters]"), ("resolver_dir", "./adapters"),
    )},
    "lora.resolver": Other("tests.server.resolvers.find", ("decoding.trust_plugins=true", *ADAPTED)),
    "scheduler.max_num_batched_tokens": Other("512"),
    "scheduler.max_long_partial_prefills": Other("2", ("scheduler.max_num_partial_prefills=2",)),
    "slo.shed_factor": Other("2", ("slo.ttft_p95=2s",)),
    **{f"slo.gate.{name}": Other("5", ("slo={ttft_p95: 2s, gate: {input_len: 8, output_len: 8}}",)) for name in (
        "num_prompts", "max_concurrency", "input_len", "output_len",
    )},
}  # fmt: skip


def draft_model_of(loaded: LoadedSpec, model: ModelFacts) -> DraftModelFiles | None:
    """Facts of the draft model that a spec names: each source has a model of its own."""
    spec = loaded.spec.speculative
    if spec is None or spec.model is None:
        return None
    facts = msgspec.structs.replace(model, root=spec.model, header_sha256=sha256_json(spec.model))
    return DraftModelFiles(facts=facts, likeness=Likeness("same", 320, 320), tokenizer_path=spec.model)


def adapters_of(loaded: LoadedSpec) -> tuple[AdapterFacts, ...]:
    """Facts of the adapters that a spec lists: each source has an adapter of its own."""
    listed = () if loaded.spec.lora is None else loaded.spec.lora.adapters
    return tuple(adapter_facts(each.source) for each in listed)


def adapter_facts(source: str) -> AdapterFacts:
    """Facts of an adapter of rank 4 that changes one module."""
    down, up = (
        TensorFacts(name=name, stored_name=name, storage="f32", shape=shape, file="a", offset_bytes=0, size_bytes=1024)
        for name, shape in (("a", (4, 64)), ("b", (64, 4)))
    )
    module = AdapterModule(name="model.layers.0.self_attn.o_proj", down=down, up=up)
    return AdapterFacts(source, None, (module,), sha256_json(source))


FETCHED = "how files are obtained; what they hold is in the plan"
CHECKED = "a rule of the spec: it allows another field, which is planned"
A_FILE = "what the file says is in the plan, which `test_classes_of_planned_values` has the class of"
A_PLACE = "a path that is made whole before planning; see tests/plan/test_adapters.py"
UNCHANGED: dict[str, str] = {
    "hardware.device": "a machine with one kind of device has no other",
    "model.source": A_FILE,
    "model.tokenizer": A_FILE,
    "decoding.generation_config": A_FILE,
    "loading.packed_dir": A_FILE,
    "model.hf_config_path": A_FILE,
    "model.sha256": FETCHED,
    "model.revision": FETCHED,
    "model.resolver": FETCHED,
    "model.tokenizer_revision": FETCHED,
    "speculative.revision": FETCHED,
    "lora.adapters[].sha256": FETCHED,
    "lora.adapters[].revision": FETCHED,
    "lora.adapters[].rank": CHECKED,
    "lora.runtime_paths": A_PLACE,
    "model.weight_update_paths": A_PLACE,
    "lora.resolver_dir": A_PLACE,
    "loading.download_dir": FETCHED,
    "loading.offline": FETCHED,
    "loading.timeout": FETCHED,
    "loading.hf_token": FETCHED,
    "loading.ignore_patterns": FETCHED,
    "model.config_format": "a checkpoint has one format; another is refused",
    "model.allow_long_max_model_len": CHECKED,
    "endpoints.auth.allow_public_without_keys": CHECKED,
    "decoding.trust_plugins": CHECKED,
    "decoding.tool_parser_plugin": "a name that decoding.tool_parser may have then; that is in the plan",
    "decoding.disable_fallback": "this version has one back-end, which falls back to none",
    "model.disable_sliding_window": "the test's model has no windows; see tests/plan/test_windows.py",
    "cache.disable_hybrid_kv_cache_manager": "the test's model has no windows; see tests/plan/test_full_caches.py",
    "hardware.kernels.attention_backend": "each set has one, and another name is refused; see test_kernel_names.py",
    "compilation.cache_dir": "a set of a CPU compiles no kernels while it serves; see tests/plan/test_graphs.py",
    "parallelism.disable_custom_all_reduce": "it says what is done either way, or is refused",
    "cache.mamba_cache_dtype": "recurrent states are float32 either way",
    "cache.mamba_ssm_cache_dtype": "recurrent states are float32 either way",
    "cache.state_snapshots": "the test's model keeps no recurrent states",
    "speculative.draft_tensor_parallel_size": "a draft model has one rank; another number is refused",
    "speculative.num_draft_states": "the test's model keeps no recurrent states",
    "parallelism.layer_partition": "two stages share the two layers of the test's model in one way; see test_stages.py",
    "parallelism.expert": "the test's model has no experts; see tests/plan/test_stages.py",
    "parallelism.expert_placement_strategy": "the test's model has no experts; see tests/plan/test_stages.py",
    "parallelism.enable_eplb": "the test's model has no experts; see tests/plan/test_stages.py",
    "parallelism.num_redundant_experts": "the test's model has no experts; see tests/plan/test_stages.py",
    "parallelism.eplb_window_size": "the test's model has no experts; see tests/plan/test_stages.py",
    "parallelism.eplb_step_interval": "the test's model has no experts; see tests/engine/test_expert_places.py",
    "parallelism.eplb_log_balancedness": "the test's model has no experts; see tests/engine/test_expert_places.py",
    "parallelism.data_parallel_hybrid_lb": "it is needed with the fields that say which replicas are here, or refused",
    "hardware.profile": "one profile fits the test's machine",
    "hardware.memory.cpu_offload": "two layers, as the test's model has, spare nothing; see tests/plan/test_offload.py",
    "hardware.memory.utilization": "the cache of the test's model is at its useful most either way",
    "hardware.kernels.quantize_activations": "the test's weights are not quantized, so there is nothing to decide",
}
