"""What each pass decides, and why it says so."""

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.types import EnginePlan, WeightPlan

from .checkpoints import FP8_BLOCKS, FP8_ROWS, described_by_itself, from_config
from .machines import MODEL, decision, load, machine, plan, qwen, small_model


def weights(found: EnginePlan) -> dict[tuple[str, str], WeightPlan]:
    return {(each.storage, each.role): each for each in found.precision.weights}


def test_plan_is_complete_and_survives_json() -> None:
    found = plan(load(), qwen())
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text, type=EnginePlan) == found
    assert b'"auto"' not in text


def test_gguf_types_keep_their_bits() -> None:
    found = weights(plan(load(), qwen()))
    assert found["q4_k", "linear"].layout == "int4"
    assert found["q5_0", "linear"].layout == "int5"
    assert found["q6_k", "linear"].layout == "int6"
    assert (found["q4_k", "linear"].group_size, found["q4_k", "linear"].sub_group_size) == (256, 32)
    assert (found["q6_k", "linear"].group_size, found["q6_k", "linear"].sub_group_size) == (256, 16)
    assert found["q8_0", "embedding"].error == found["q4_k", "linear"].error == "exact"
    assert found["f32", "other"].layout == "f32"


def test_quantization_none_dequantizes_to_the_dtype() -> None:
    found = weights(plan(load(MODEL + "  quantization: none\n  dtype: float32\n"), qwen()))
    assert {each.layout for each in found.values()} == {"f32"}
    assert found["q5_0", "linear"].error == "exact"


@pytest.mark.parametrize(("stored", "layout"), [("float32", "bf16"), ("float16", "bf16"), ("bfloat16", "bf16")])
def test_dtype_auto_is_bf16_on_a_cpu(stored: str, layout: str) -> None:
    found = plan(load(), small_model(torch_dtype=stored))
    assert weights(found)[{"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[stored], "linear"].layout == layout


@pytest.mark.parametrize(("stored", "layout"), [("float32", "f16"), ("float16", "f16"), ("bfloat16", "bf16")])
def test_dtype_auto_on_a_gpu_follows_vllm(stored: str, layout: str) -> None:
    found = plan(load(), small_model(torch_dtype=stored), machine("nvidia-h100-sxm-80g"))
    assert {each.layout for each in found.precision.weights if each.role == "linear"} == {layout}


def test_float32_takes_the_cache_along() -> None:
    found = plan(load(MODEL + "  dtype: float32\n"))
    assert found.precision.kv_dtype == "f32"
    assert decision(found, "precision.kv_dtype").source == "spec"


@pytest.mark.parametrize(("quantization", "linear", "embedding"), [("int8", "int8", "int8"), ("int4", "int4", "int8")])
def test_plain_weights_can_be_quantized_while_loading(quantization: str, linear: str, embedding: str) -> None:
    found = plan(load(MODEL + f"  quantization: {quantization}\n"))
    planned = weights(found)
    assert (planned["bf16", "linear"].layout, planned["bf16", "embedding"].layout) == (linear, embedding)
    assert planned["bf16", "linear"].planned_bytes < planned["bf16", "linear"].stored_bytes
    assert found.precision.quantize_activations


def test_bitsandbytes_leaves_embeddings_and_means_what_is_stored_where_it_is() -> None:
    text = MODEL + "  quantization: bitsandbytes\nloading: {load_format: bitsandbytes}\n"
    planned = weights(plan(load(text)))
    linear = planned["bf16", "linear"]
    assert (linear.layout, linear.group_size, planned["bf16", "embedding"].layout) == ("nf4", 64, "bf16")
    assert linear.planned_bytes == linear.stored_bytes // 4 + linear.stored_bytes // 2 // 64 * 4
    stored = plan(
        load(MODEL + "  quantization: bitsandbytes\n"),
        msgspec.structs.replace(small_model(), quantization="bitsandbytes"),
    )
    assert weights(stored)["bf16", "linear"].layout == "bf16"  # modules that were skipped stay as they are


@pytest.mark.parametrize(
    ("hardware", "rounds"), [("nvidia-h100-sxm-80g", True), ("nvidia-a100-sxm-80g", False), ("amd-mi300x-192g", False)]
)
def test_activations_that_meet_fp8_weights_are_rounded_where_a_gpu_multiplies_fp8(hardware: str, rounds: bool) -> None:
    model = described_by_itself(from_config("llama-3.1-8b"), coded=FP8_ROWS)
    found = plan(load(), model, machine(hardware))
    assert found.precision.quantize_activations is rounds
    off = load(MODEL + "hardware: {kernels: {quantize_activations: false}}\n")
    assert not plan(off, model, machine(hardware)).precision.quantize_activations
    blocks = described_by_itself(from_config("llama-3.1-8b"), coded=FP8_BLOCKS)
    assert not plan(load(), blocks, machine(hardware)).precision.quantize_activations


def test_activation_rounding_can_be_switched_off() -> None:
    text = MODEL + "hardware: {kernels: {quantize_activations: false}}\n"
    assert not plan(load(text), qwen()).precision.quantize_activations
    assert plan(load(), qwen()).precision.quantize_activations
    assert not plan(load()).precision.quantize_activations  # no integer weights
    embeds = MODEL + "  task: embed\n"
    assert not plan(load(embeds), qwen()).precision.quantize_activations
    asked = embeds + "hardware: {kernels: {quantize_activations: true}}\n"
    assert plan(load(asked), qwen()).precision.quantize_activations


def test_transposed_weights_are_measured_by_their_input() -> None:
    found = plan(load(MODEL + "  quantization: int8\n"), from_config("gpt2"))
    linear = weights(found)["f32", "linear"]
    elements = linear.stored_bytes // 4
    assert linear.planned_bytes == elements + elements // 32 * 2


def test_plain_weights_become_fp8_and_meet_fp8_activations_where_the_gpu_multiplies_them() -> None:
    spec = load(MODEL + "  quantization: fp8\n")
    for name, rounds in (("nvidia-h100-sxm-80g", True), ("nvidia-a100-sxm-80g", False), ("server-epyc-9654", False)):
        found = plan(spec, from_config("llama-3.1-8b"), machine(name)).precision
        layouts = {each.role: each.layout for each in found.weights}
        assert layouts == {"linear": "f8", "embedding": "bf16", "other": "f32"}, name
        assert found.quantize_activations == rounds, name


def test_the_best_kernel_set_that_runs_is_chosen() -> None:
    found = plan(load(), facts=machine("server-xeon-platinum-8480"))
    assert found.kernels.kernel_set == "cpu-amx"
    refused = found.kernels.choices[0].refused
    assert refused["cpu-avx2"] == "cpu-amx is preferred"
    older = plan(load(), facts=machine("server-xeon-e5-2680-v2"))
    assert older.kernels.kernel_set == "cpu-generic"
    assert "avx2" in older.kernels.choices[0].refused["cpu-avx2"]


def test_operators_are_those_of_the_program_with_the_types_that_they_meet() -> None:
    operators = [choice.operator for choice in plan(load(), qwen()).kernels.choices]
    assert operators == [
        "Embed[int5]", "RmsNorm", "Linear[int4]", "Linear[int5]", "Linear[int6]", "Linear[int8]", "GatedActivation",
        "Rope", "KvWrite[bf16]", "PagedAttention[bf16]", "GatherRows",
    ]  # fmt: skip


def test_planned_for_a_device_that_the_installed_torch_has_not() -> None:
    here = msgspec.structs.replace(machine("amd-mi300x-192g"), torch="2.13.0+cpu")
    found = plan(load(), facts=here)
    assert found.kernels.support == "compiled here"
    assert any("rocm" in reason for reason in found.cannot_run)
    assert found.memory[0].device == "rocm:0"


def test_an_architecture_that_is_not_built_is_planned_but_not_run() -> None:
    later = msgspec.structs.replace(from_config("mixtral-8x7b"), architecture="WhisperForConditionalGeneration")
    found = plan(load(), later, machine("server-epyc-9654"))
    assert any("WhisperForConditionalGeneration" in reason for reason in found.cannot_run)
    assert found.memory[0].items[0].size_bytes > 80 << 30


def test_context_is_the_models_own_where_it_fits() -> None:
    found = plan(load())
    assert found.model.max_model_len == 128
    assert decision(found, "model.max_model_len").source == "model"


def test_a_longer_context_needs_permission() -> None:
    text = MODEL + "  max_model_len: 256\n  allow_long_max_model_len: true\n"
    assert plan(load(text)).model.max_model_len == 256


def test_rotary_overrides_reach_plan_and_context() -> None:
    text = MODEL + "  rope_scaling: {rope_type: linear, factor: 2.0}\n"
    found = plan(load(text))
    assert found.model.max_model_len == 256
    assert found.model.config_overrides["rope_scaling"]["factor"] == 2.0
    assert found.model.config_overrides["rope_theta"] == 500000.0


def test_sampling_defaults_come_from_checkpoint_file_and_spec() -> None:
    model = msgspec.structs.replace(small_model(), generation_config={"temperature": 0.6, "max_new_tokens": 9})
    assert plan(load(), model).model.default_sampling == {"temperature": 0.6, "max_tokens": 9}
    none = load(MODEL + "decoding: {generation_config: none}\n")
    assert plan(none, model).model.default_sampling == {}
    text = MODEL + "decoding: {generation_config: ./other, override_generation_config: {top_k: 5}}\n"
    files = ResolvedFiles(generation_config={"temperature": 0.1})
    assert plan(load(text), model, files=files).model.default_sampling == {"temperature": 0.1, "top_k": 5}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{%- for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "openai"),
    ],
)
def test_content_format_is_found_in_the_template(template: str, wanted: str) -> None:
    found = plan(load(MODEL + "  chat_template: t\n"), files=ResolvedFiles(chat_template=template))
    assert found.model.chat_template == template
    assert found.model.chat_template_content_format == wanted


def test_unchunked_steps_hold_the_longest_prompt() -> None:
    model = small_model(max_position_embeddings=4096)
    found = plan(load(MODEL + "scheduler: {chunked_prefill: false}\n"), model)
    assert found.scheduler.max_num_batched_tokens == 4096


def test_overrides_are_named_as_sources() -> None:
    found = plan(load(MODEL, "scheduler.max_num_seqs=3"))
    assert found.scheduler.max_num_seqs == 3
    assert decision(found, "scheduler.max_num_seqs").source == "override"
    assert decision(plan(load()), "scheduler.max_num_seqs").source == "profile"


def test_steps_are_cut_to_the_promised_time_between_tokens() -> None:
    assert plan(load()).scheduler.target_step_s == 0.15
    promised = plan(load(MODEL, "slo.itl_p95=100ms", "slo.itl_p99=1s"))
    assert promised.scheduler.target_step_s == pytest.approx(0.08)
    assert decision(promised, "scheduler.target_step_s").source == "computed"
    assert plan(load(MODEL, "scheduler.chunked_prefill=false")).scheduler.target_step_s is None


@pytest.mark.parametrize(
    ("settings", "share", "source"),
    [
        ((), 0.04, "default"),
        (("slo.itl_p95=100ms",), 0.04, "default"),
        (("slo.itl_p50=100ms",), 0.04, "default"),
        (("slo.itl_p95=100ms", "slo.itl_p99=1s"), 0.008, "computed"),
        (("scheduler.chunked_prefill=false",), 0.0, "computed"),
    ],
)
def test_a_promised_percentile_says_how_many_steps_may_be_late(settings, share: float, source: str) -> None:
    found = plan(load(MODEL, *settings))
    assert found.scheduler.late_share == pytest.approx(share)
    assert decision(found, "scheduler.late_share").source == source


def test_serving_changes_leave_the_engine_hash_alone() -> None:
    base = plan(load())
    for text in ("endpoints: {http: {port: 9000}}\n", "slo: {ttft_p95: 2s}\n", "restart: {max_restarts: 1}\n"):
        changed = plan(load(MODEL + text))
        assert changed.engine_sha256 == base.engine_sha256
        assert changed.serving_sha256 != base.serving_sha256
    served = plan(load(MODEL + "  served_names: [other]\n"))
    assert served.engine_sha256 == base.engine_sha256


def test_engine_changes_leave_the_serving_hash_alone() -> None:
    base, changed = plan(load()), plan(load(MODEL + "cache: {block_size: 32}\n"))
    assert changed.engine_sha256 != base.engine_sha256
    assert changed.serving_sha256 == base.serving_sha256


@pytest.mark.parametrize(
    ("endpoint", "planned"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_traces_have_a_whole_address_and_a_name(endpoint: str, planned: str) -> None:
    assert plan(load()).serving.traces is None
    traces = plan(load(MODEL, f"observability.traces.otlp_traces_endpoint={endpoint}")).serving.traces
    assert traces is not None
    assert (traces.endpoint, traces.sampling_ratio, traces.service_name) == (planned, 1.0, plan(load()).name)


def test_one_kind_of_lesser_form_has_its_own_rule() -> None:
    amx = "hardware: {kernels: {kernel_set: cpu-amx}}\n"
    found = plan(load("degradations: {kernel_set: allow, truncated_prompt: error}\n" + MODEL + amx))
    assert (found.degraded, found.warnings) == (("kernel_set",), ())
    assert (found.serving.requests.unknown_fields, found.serving.requests.truncated_prompts) == ("error", "error")
    found = plan(load("strictness: warn\ndegradations: {ignored_field: error}\n" + MODEL))
    assert (found.serving.requests.unknown_fields, found.serving.requests.truncated_prompts) == ("error", "allow")
    with pytest.raises(SpecError, match="cpu-amx cannot run"):
        plan(load("strictness: allow\ndegradations: {kernel_set: error}\n" + MODEL + amx))


@pytest.mark.parametrize("strictness", ["warn", "allow"])
def test_lesser_forms_where_strictness_allows(strictness: str) -> None:
    text = f"strictness: {strictness}\n" + MODEL + "hardware: {kernels: {kernel_set: cpu-amx}}\n"
    found = plan(load(text))
    assert found.kernels.kernel_set == "cpu-avx512_bf16"
    assert bool(found.warnings) == (strictness == "warn")
    assert found.degraded == ("kernel_set",)
    assert plan(load()).degraded == ()
    with pytest.raises(SpecError, match="cpu-amx cannot run"):
        plan(load(MODEL + "hardware: {kernels: {kernel_set: cpu-amx}}\n"))
