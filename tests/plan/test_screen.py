"""The copy of the output head: when it is planned, what it takes, and what it does to estimates."""

from typing import Any

import msgspec
import pytest

from appliance.base.errors import FitError, SpecError
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.estimate import Workload, estimate
from appliance.plan.programs import Programs, program_of
from appliance.plan.screen import SCREEN
from appliance.plan.types import EnginePlan
from tests.plan.checkpoints import described_by_itself, from_config
from tests.plan.machines import MODEL, decision, load, machine, plan, qwen, small_model

PATH = "kernels.screen_logits"
LARGE = 4096 * 1024  # elements of a head that is worth a copy


def large(**changes: Any) -> ModelFacts:
    return small_model(**({"vocab_size": 4096, "hidden_size": 1024} | changes))


def screened(value: object) -> str:
    return MODEL + f"hardware: {{kernels: {{screen_logits: {value}}}}}\n"


def with_head(storage: str) -> ModelFacts:
    """The GGUF checkpoint, whose head is Q8_0, with a head of another type."""
    model = qwen()
    assert any(each.name == "lm_head.weight" for each in model.tensors)
    tensors = [
        msgspec.structs.replace(each, storage=storage) if each.name == "lm_head.weight" else each
        for each in model.tensors
    ]
    return msgspec.structs.replace(model, tensors=tuple(tensors))


def item_bytes(found: EnginePlan) -> int:
    return sum(item.size_bytes for item in found.memory[0].items if item.name == SCREEN)


def test_large_dense_heads_have_one() -> None:
    found = plan(load(), large())
    assert found.kernels.screen_logits
    assert item_bytes(found) == LARGE + 12 * 4096
    assert decision(found, PATH).source == "computed"


def test_a_tied_head_is_the_embedding() -> None:
    assert item_bytes(plan(load(), large(tie_word_embeddings=True))) == LARGE + 12 * 4096


def test_heads_of_8_bits_have_one_of_six() -> None:
    found = plan(load(MODEL + "  quantization: int8\n"), large())
    assert found.kernels.screen_logits
    assert item_bytes(found) == LARGE * 6 // 8 + 4096 * (1024 // 32 * 2 + 8)
    assert plan(load(), qwen()).kernels.screen_logits


@pytest.mark.parametrize(
    ("text", "model", "reason"),
    [
        (MODEL, small_model(), "the output head is small"),
        (MODEL, with_head("q5_0"), "less than 8 bits"),
        (MODEL + "  quantization: int8\n", large(num_hidden_layers=64), "of what a token reads"),
        (MODEL + "hardware: {kernels: {kernel_set: reference}}\n", large(), "computes all logits"),
        (screened("false"), large(), ""),
    ],
    ids=["small", "few bits", "little of the model", "reference", "switched off"],
)
def test_others_have_none(text: str, model: ModelFacts, reason: str) -> None:
    found = plan(load(text), model)
    assert not found.kernels.screen_logits
    assert item_bytes(found) == 0
    assert reason in decision(found, PATH).reason


def test_capped_logits_have_none() -> None:
    gemma = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 64}
    capped = described_by_itself(large(**gemma, query_pre_attn_scalar=64, hidden_activation="gelu_pytorch_tanh"))
    assert "capped" in decision(plan(load(), capped), PATH).reason


def test_it_can_be_asked_for() -> None:
    found = plan(load(screened("true")))
    assert found.kernels.screen_logits
    assert decision(found, PATH).source == "spec"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        plan(load(screened("true")), with_head("q5_0"))
    refusal = caught.value.diagnostics[0]
    assert refusal.path == "hardware.kernels.screen_logits"
    assert "8 bits" in refusal.message
    assert refusal.hint == "write auto"


def test_the_cache_comes_first_unless_it_is_asked_for() -> None:
    """A machine whose cache takes all there is."""
    model, small = from_config("mistral-7b-v0.1"), machine("laptop-core-i7-1365u")
    automatic = plan(load(), model, small)
    assert not automatic.kernels.screen_logits
    assert "cache" in decision(automatic, PATH).reason
    off = plan(load(screened("false")), model, small)
    assert automatic.cache.num_blocks == off.cache.num_blocks
    asked = plan(load(screened("true")), model, small)
    assert item_bytes(asked) > 0
    assert asked.cache.num_blocks < off.cache.num_blocks


def test_a_copy_that_does_not_fit_is_suggested_away() -> None:
    model, blocks = large(num_hidden_layers=1), "cache: {num_blocks: 8}\n"
    off = plan(load(screened("false") + blocks), model)
    used = sum(item.size_bytes for item in off.memory[0].items)
    tight = machine(memory_bytes=int((used + LARGE / 2) / 0.9))
    with pytest.raises(FitError) as caught:
        plan(load(screened("true") + blocks), model, tight)
    assert "hardware.kernels.screen_logits: auto" in (caught.value.diagnostics[0].hint or "")
    assert not plan(load(screened("auto") + blocks), model, tight).kernels.screen_logits


@pytest.mark.parametrize(
    ("text", "streams", "saved"),
    [
        (MODEL, 1, 1024 - 12),  # of two bytes one, but for a scale and two norms
        (MODEL, 64, 1024 - 12),
        (MODEL + "  quantization: int8\n", 4, 1024 / 4 - 8),  # two bits, but for two norms
        (MODEL + "  quantization: int8\n", 5, 0),
    ],
)
def test_the_floor_of_a_decode_reads_the_copy(text: str, streams: int, saved: float) -> None:
    """`saved`: bytes of a row."""
    model = large()
    measured = MeasuredFacts(read_bandwidth=1e9, f32_peak=1e12, bf16_peak=1e12, int8_peak=1e12)
    found = plan(load(text), model)
    off = msgspec.structs.replace(found, kernels=msgspec.structs.replace(found.kernels, screen_logits=False))
    program = program_of(found, model, Programs())
    with_copy, without = (estimate(each, program, measured, Workload(streams=streams)) for each in (found, off))
    assert with_copy is not None
    assert without is not None
    assert without.itl_s - with_copy.itl_s == pytest.approx(4096 * saved / 1e9, rel=0.001)
