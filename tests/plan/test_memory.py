"""Sizes, what fits, and what would make it fit."""

import dataclasses

import pytest

from appliance.base.errors import FitError
from appliance.hardware import load_profiles, select_profile
from appliance.plan.compile import run_passes
from appliance.plan.fit import helpful_changes
from appliance.plan.inputs import PlanInputs
from appliance.plan.types import EnginePlan
from appliance.spec import load_text

from .checkpoints import from_config
from .machines import MODEL, decision, load, machine, plan, qwen, small_model

GIB, MIB = 1 << 30, 1 << 20


def items(found: EnginePlan) -> dict[str, int]:
    return {item.name: item.size_bytes for item in found.memory[0].items}


def test_weights_of_an_8b_model_are_exact() -> None:
    found = plan(load(), from_config("llama-3.1-8b"), machine("server-epyc-9654"))
    parameters = 8_030_261_248
    norms = (2 * 32 + 1) * 4096
    tables = 131_072 * 128 * 4
    assert items(found)["weights"] == 2 * parameters + 2 * norms + tables  # norms become f32


def test_kv_bytes_of_an_8b_model() -> None:
    memory = plan(load(), from_config("llama-3.1-8b"), machine("server-epyc-9654")).memory[0]
    assert memory.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert memory.kv_bytes_per_block == 16 * memory.kv_bytes_per_token


@pytest.mark.parametrize("dtype", ["int8", "fp8", "fp8_e5m2"])
def test_kv_bytes_in_8_bits_have_a_scale_for_each_token_and_head(dtype: str) -> None:
    text = MODEL + f"cache: {{dtype: {dtype}}}\n"
    memory = plan(load(text), from_config("llama-3.1-8b"), machine("server-epyc-9654")).memory[0]
    assert memory.kv_bytes_per_token == 2 * 32 * 8 * (128 + 4)
    assert memory.kv_bytes_per_block == 16 * memory.kv_bytes_per_token


def test_groups_of_a_sliding_window_model() -> None:
    memory = plan(load(), from_config("mistral-7b-v0.1"), machine("server-epyc-9654")).memory[0]
    assert [(group.num_layers, group.window) for group in memory.kv_groups] == [(32, 4096)]


def test_the_items_stay_within_the_budget() -> None:
    for name in ("laptop-core-i7-1365u", "server-epyc-9654", "nvidia-l4-24g", "amd-mi300x-192g"):
        memory = plan(load(), qwen(), machine(name)).memory[0]
        assert sum(item.size_bytes for item in memory.items) <= memory.budget_bytes


def test_auto_context_shrinks_to_what_fits() -> None:
    model = from_config("llama-3.1-8b")
    found = plan(load(), model, machine(memory_bytes=20 * GIB))
    assert 1024 <= found.model.max_model_len < 131_072
    assert found.cache.num_blocks * found.cache.block_size >= found.model.max_model_len
    assert "the model's own limit is 131,072" in decision(found, "model.max_model_len").reason


def test_a_stated_context_that_does_not_fit_is_refused_with_checked_changes() -> None:
    loaded = load(MODEL + "  max_model_len: 128K\n")
    facts = machine(memory_bytes=26 * GIB)
    with pytest.raises(FitError) as caught:
        plan(loaded, from_config("llama-3.1-8b"), facts)
    (found,) = caught.value.diagnostics
    assert (found.rule, found.path, found.line, found.column) == ("plan/fit", "model.max_model_len", 6, 18)
    assert "model.max_model_len: " in found.hint
    assert "model.quantization: int" in found.hint
    assert caught.value.exit_code == 3


def test_every_suggestion_fits_when_it_is_taken() -> None:
    loaded = load(MODEL + "  max_model_len: 128K\n  dtype: float32\nhardware: {memory: {utilization: 0.7}}\n")
    facts = machine(memory_bytes=52 * GIB)
    inputs = PlanInputs(
        loaded=loaded,
        facts=facts,
        profile=select_profile(facts, load_profiles()).profile,
        model=from_config("llama-3.1-8b"),
    )
    changes = helpful_changes(inputs, lambda changed: run_passes(changed).ledger)
    assert len(changes) >= 2
    for change in changes:
        again = load_text(loaded.text, "test.yaml", [f"{change.path}={change.value}"], {})
        plan(again, inputs.model, facts)


def test_ranks_are_suggested_where_devices_are_there() -> None:
    with pytest.raises(FitError) as caught:
        plan(load(), from_config("llama-3.1-70b"), machine("nvidia-8xh200-sxm-141g"))
    assert "parallelism.tensor: 2 (not in this version)" in caught.value.diagnostics[0].hint


def test_nothing_helps_where_nothing_does() -> None:
    with pytest.raises(FitError, match="cannot hold it") as caught:
        plan(load(), from_config("llama-3.1-70b"), machine("laptop-core-i7-1365u"))
    assert "a smaller model" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("text", "blocks", "length"),
    [("cache: {num_blocks: 7}\n", 7, 7 * 16), ("hardware: {memory: {kv_cache: 1MiB}}\n", 256, 128)],
)
def test_the_cache_is_as_large_as_the_spec_says(text: str, blocks: int, length: int) -> None:
    found = plan(load(MODEL + text), small_model())
    assert found.cache.num_blocks == blocks
    assert found.model.max_model_len == length  # of the model's 128


def test_blocks_hold_what_the_layers_of_the_model_keep() -> None:
    """A window keeps 4,096 tokens at any length, where full attention keeps a slot for each token."""
    text = MODEL + "  max_model_len: 32K\ncache: {block_size: 16, num_blocks: 300}\n"
    mistral, llama = from_config("mistral-7b-v0.1"), from_config("llama-3.1-8b")
    facts = machine("server-epyc-9654")
    assert plan(load(text), mistral, facts).model.max_model_len == 32_768
    with pytest.raises(FitError) as caught:
        plan(load(text), llama, facts)
    (found,) = caught.value.diagnostics
    assert (found.path, found.allowed) == ("model.max_model_len", "auto, or at most 4096")
    with pytest.raises(FitError):
        plan(load(text.replace("300", "200")), mistral, facts)


def test_a_cache_that_is_too_large_is_refused() -> None:
    with pytest.raises(FitError) as caught:
        plan(load(MODEL + "hardware: {memory: {kv_cache: 100GiB}}\n"))
    assert "hardware.memory.kv_cache: auto" in caught.value.diagnostics[0].hint


def test_the_cpu_cache_is_bounded() -> None:
    small = plan(load())
    assert small.cache.num_blocks == 2 * small.scheduler.max_num_seqs * (128 // 16)  # all at full length, twice
    large = plan(load(), qwen(), machine("server-epyc-9654"))
    assert items(large)["kv_cache"] <= large.memory[0].budget_bytes // 4


def test_strictness_allows_a_shorter_context() -> None:
    loaded = load("strictness: warn\n" + MODEL + "  max_model_len: 128K\n")
    found = plan(loaded, from_config("llama-3.1-8b"), machine(memory_bytes=20 * GIB))
    assert found.model.max_model_len < 131_072
    assert found.warnings


def test_inputs_are_left_as_they_were() -> None:
    loaded = load(MODEL + "  max_model_len: 128K\n")
    before = dataclasses.replace(loaded)
    with pytest.raises(FitError):
        plan(loaded, from_config("llama-3.1-8b"), machine(memory_bytes=20 * GIB))
    assert loaded == before


def test_a_reserve_of_the_cache_is_resident_ahead_of_its_use() -> None:
    roomy = plan(load(), from_config("llama-3.1-8b"), machine("server-epyc-9654"))
    assert roomy.memory[0].kv_bytes_per_block == 2 * MIB
    assert roomy.cache.prefault_blocks == 128, "256 MiB"
    assert decision(roomy, "cache.prefault_blocks").source == "computed"
    whole = plan(load())
    assert whole.cache.prefault_blocks == whole.cache.num_blocks, "of less than 256 MiB all"


@pytest.mark.parametrize(
    ("wanted", "blocks"),
    [("0B", 0), ("1B", 1), ("2MiB", 1), ("2049KiB", 2), ("1GiB", 512), ("999GiB", 1000)],
)
def test_a_stated_reserve_is_whole_blocks_of_the_cache(wanted: str, blocks: int) -> None:
    loaded = load(MODEL, f"cache.prefault={wanted}", "cache.num_blocks=1000", "model.max_model_len=1K")
    found = plan(loaded, from_config("llama-3.1-8b"), machine("server-epyc-9654"))
    assert found.memory[0].kv_bytes_per_block == 2 * MIB
    assert (found.cache.num_blocks, found.cache.prefault_blocks) == (1000, blocks)
    assert decision(found, "cache.prefault_blocks").source == "override"


def test_the_cache_of_a_gpu_needs_no_reserve() -> None:
    found = plan(load(), facts=machine("nvidia-h100-sxm-80g"))
    assert found.cache.prefault_blocks == 0
    assert "resident" in decision(found, "cache.prefault_blocks").reason


def test_a_gpu_keeps_the_embeddings_of_a_step_in_f32() -> None:
    """Each of its tokens may have one of its own."""
    card = machine("nvidia-h100-sxm-80g")
    plain, given = (
        plan(load(MODEL, *wish), from_config("llama-3.1-8b"), card)
        for wish in ((), ("model.enable_prompt_embeds=true",))
    )
    more = given.memory[0].items
    size = {each.name: each.size_bytes for each in more}["workspace"]
    before = {each.name: each.size_bytes for each in plain.memory[0].items}["workspace"]
    assert size - before == given.scheduler.max_num_batched_tokens * (4096 + 1) * 4
    assert any("embeddings of prompts" in each.formula for each in more)
