"""The planner follows the program: of a family that it has never heard of, and where stored types differ."""

from collections.abc import Callable

import msgspec
import pytest

from appliance.catalog.architectures import ARCHITECTURES, Architecture
from appliance.catalog.formats import BF16, F32
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import ModelFacts
from appliance.models.describe import describe
from appliance.plan.programs import Programs, program_of
from appliance.plan.types import EnginePlan
from appliance.plan.weights import Forms, read_weights, sizes_by_group, weight_bytes

from .checkpoints import described_by_itself, from_config
from .machines import MODEL, decision, load, machine, plan, qwen, small_model
from .toy_family import HIDDEN, VOCABULARY

ODD = "OddForCausalLM"
POSITIONS = 128
FORMS: Forms = {("f32", "linear"): BF16, ("f32", "embedding"): BF16, ("f32", "other"): F32}


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> ModelFacts:
    """A checkpoint of the toy family, which one row of the catalogue makes known."""
    monkeypatch.setitem(ARCHITECTURES, ODD, Architecture(ODD, "tests.plan.toy_family"))
    model = described_by_itself(msgspec.structs.replace(small_model(), architecture=ODD))
    shapes = {"odd.positions": (POSITIONS, HIDDEN)}  # as many as the checkpoint has
    tensors = [msgspec.structs.replace(each, shape=shapes.get(each.name, each.shape)) for each in model.tensors]
    return msgspec.structs.replace(model, tensors=tuple(tensors))


def items(found: EnginePlan) -> dict[str, int]:
    return {item.name: item.size_bytes for item in found.memory[0].items}


def test_caches_are_those_that_its_layers_declare(odd: ModelFacts) -> None:
    memory = plan(load(), odd).memory[0]
    assert [(g.num_layers, g.num_kv_heads, g.head_dim, g.window) for g in memory.kv_groups] == [
        (1, 2, 24, None),
        (1, 1, 8, 16),
    ]
    assert memory.kv_bytes_per_token == 2 * (2 * 32 + 1 * 16) * 2  # heads in whole panels of 16, bf16


def test_activations_are_the_widest_place_of_its_program(odd: ModelFacts) -> None:
    """Slots of the two layers, which differ in width, live one after the other."""
    found = plan(load(), odd)
    per_token = 2 * HIDDEN + 3 * 48 + 48  # hidden, normed, qkv, attention: at the first layer's attention
    per_row = 3 * HIDDEN + 400 + 200  # hidden, branch, normed, gate_up, inner: behind the last layer's attention
    assert per_row > HIDDEN + VOCABULARY
    (item,) = [each for each in found.memory[0].items if each.name == "activations"]
    assert f"tokens x {per_token:,} and" in item.formula
    assert f"{found.scheduler.max_num_seqs:,} rows x {per_row:,} (last layer)" in item.formula


def test_weights_are_joined_and_padded_as_its_program_has_them(odd: ModelFacts) -> None:
    found = plan(load(), odd)
    planned = {(each.storage, each.role): each for each in found.precision.weights}
    rows = [48 * 3, 48, 40, 48, 32 + 2 * 8, 48, 400, 48]  # q+k+v, o, up, down; q+k+v, o, gate+up, down
    columns = [48, 48, 48, 40, 48, 32, 48, 200]
    padded = sum(-(-n // 16) * 16 * k * 2 for n, k in zip(rows, columns, strict=True))
    assert planned["bf16", "linear"].planned_bytes == padded
    assert planned["bf16", "embedding"].planned_bytes == 2 * 512 * HIDDEN * 2  # 500 rows in whole panels
    assert planned["bf16", "other"].planned_bytes == 4 * (5 * HIDDEN + POSITIONS * HIDDEN)


def test_kernels_are_chosen_for_the_operators_that_it_has(odd: ModelFacts) -> None:
    found = plan(load(), odd)
    assert [choice.operator for choice in found.kernels.choices] == [
        "Embed[bf16]", "Embed[f32]", "RmsNorm", "Linear[bf16]", "GatedActivation", "KvWrite[bf16]",
        "PagedAttention[bf16]", "GatherRows", "SoftCap",
    ]  # fmt: skip
    assert "capped" in decision(found, "kernels.screen_logits").reason


def test_an_outline_stands_for_what_cannot_be_built() -> None:
    model = msgspec.structs.replace(from_config("mixtral-8x7b"), architecture="WhisperForConditionalGeneration")
    found = plan(load(), model, machine("server-epyc-9654"))
    assert program_of(found, model, Programs()) is None
    assert {choice.operator for choice in found.kernels.choices} >= {"Linear[bf16]", "PagedAttention[bf16]", "Rope"}


def test_a_stored_copy_of_a_tied_head_takes_no_memory() -> None:
    tied = small_model(tie_word_embeddings=True)
    (table,) = [each for each in tied.tensors if each.name == "model.embed_tokens.weight"]
    copy = msgspec.structs.replace(table, name="lm_head.weight")
    stored = msgspec.structs.replace(tied, tensors=(*tied.tensors, copy))
    assert items(plan(load(), stored))["weights"] == items(plan(load(), tied))["weights"]


def stored_as(model: ModelFacts, storage_of: Callable[[str], str]) -> ModelFacts:
    tensors = (
        msgspec.structs.replace(each, storage=storage_of(each.name)) if len(each.shape) > 1 else each
        for each in model.tensors
    )
    return msgspec.structs.replace(model, tensors=tuple(tensors), quantization="gguf")


def test_parts_of_one_form_are_one_weight_whatever_they_are_stored_as() -> None:
    """Q4_0 and Q4_1 are both int4 in groups of 32: joined, the first needs offsets for the second's sake."""
    model = stored_as(small_model(), lambda name: "q4_1" if "k_proj" in name else "q4_0")
    found = plan(load(), model)
    planned = {(each.storage, each.role): each.planned_bytes for each in found.precision.weights}
    program = program_of(found, model, Programs())
    assert program is not None
    assert "layers.0.q+k+v" in program.weights
    joined = (64 + 32 + 32) * (32 + 2 * 2 * 2)  # 64 columns: codes, and a scale and an offset of each of two groups
    assert program.sizes["layers.0.q+k+v"] == joined
    assert planned["q4_1", "linear"] == 2 * joined * 32 // 128
    assert sum(planned.values()) == sum(program.sizes.values())


def test_parts_of_different_forms_stay_apart() -> None:
    model = stored_as(small_model(), lambda name: "q8_0" if "v_proj" in name else "q4_0")
    program = program_of(plan(load(), model), model, Programs())
    assert program is not None
    assert {"layers.0.q+k", "layers.0.v"} <= set(program.weights)


def test_every_byte_of_a_weight_belongs_to_a_row_of_the_plan() -> None:
    model = qwen()
    found = plan(load(), model)
    program = program_of(found, model, Programs())
    assert program is not None
    assert sum(each.planned_bytes for each in found.precision.weights) == sum(program.sizes.values())
    assert sum(each.num_tensors for each in found.precision.weights) == len(model.tensors)


def test_a_fused_tensor_is_one_tensor_of_several_weights() -> None:
    model = from_config("gpt2")
    weights = read_weights(describe(model, 128), model)
    kernels = KERNEL_SETS["cpu-generic"]
    sizes = {name: weight_bytes(weight, FORMS, kernels) for name, weight in weights.items()}
    linear = sizes_by_group(weights, sizes)["f32", "linear"]
    assert linear.num_tensors == 4 * 12
    assert len([name for name in weights if name.endswith("q+k+v")]) == 12


def test_what_was_described_is_used_again() -> None:
    model, programs = small_model(), Programs()
    found = plan(load(), model)
    first, second = (program_of(found, model, programs) for _ in range(2))
    assert first is second is not None
    other = plan(load(MODEL + "  quantization: int8\n"), model)
    assert program_of(other, model, programs) is not first
