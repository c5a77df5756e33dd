"""GGUF files of every listed type against transformers running the same weights, dequantized.

Every type in its own form, and everything under `quantization: none` in f32, agrees to f32 rounding; bf16 weights move
the logits of these models by less than 2 % of their spread.
"""

from itertools import product

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GgmlType

from appliance.catalog.formats import STORAGES
from appliance.checkpoint.gguf_names import NAMES
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.interface import KernelSet
from appliance.models.adapters import place_filter, trained_weights
from tests.models.gguf_files import ARCHITECTURES, GgufFile
from tests.models.tiny import FAMILIES, VARIANTS, VOCAB_SIZE
from tests.parity.conftest import Write
from tests.parity.harness import Driver, bind, execution_of, precision
from tests.parity.rounding import assert_logits_close, deviation, oracle_logits, rounds_inputs

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
IQ_TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
SOME_PLACES = ("layers.0.delta.v", "layers.0.delta.o", "layers.0.gate", "layers.3.q")
PROMPT = [int(token) for token in np.random.default_rng(8).integers(3, VOCAB_SIZE, 23)]
TIGHT = {"rtol": 3e-4, "atol": 3e-4}
RECURRENT = {"rtol": 1e-3, "atol": 1e-3}  # states carry the rounding of sums, whose order is the processor's
BF16_WEIGHTS = 0.02


def expected(file: GgufFile) -> np.ndarray:
    return oracle_logits(file.oracle, PROMPT)


def logits(file: GgufFile, kernel_set: KernelSet, dense: str | None = None) -> np.ndarray:
    facts, bounds = read_model_facts(file.path), execution_of(max_model_len=64)
    return Driver(bind(facts, kernel_set, precision(facts, dense), bounds), bounds).all_logits(PROMPT)


@pytest.mark.parametrize(("name", "kind"), [*product(("llama", "qwen2"), TYPES), *product(("qwen2",), IQ_TYPES)])
def test_every_type_in_its_native_form(name: str, kind: str, written: Write, kernel_set: KernelSet) -> None:
    file = written(name, kind, lambda _: GgmlType[kind])
    assert STORAGES[kind.lower()].error == "exact"
    rounds = kind == "BF16" and rounds_inputs(kernel_set)
    assert_logits_close(logits(file, kernel_set), file.oracle, PROMPT, TIGHT, rounds)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_dequantized_to_f32(kind: str, written: Write, kernel_set: KernelSet) -> None:
    file = written("qwen2", kind, lambda _: GgmlType[kind])
    np.testing.assert_allclose(logits(file, kernel_set, dense="f32"), expected(file), **TIGHT)


# Variants whose files differ.
FURTHER = (
    "deepseek2-groups", "falcon-one-norm", "gemma4-experts", "jais2", "nemotron_h-dense", "nemotron_h-latent",
)  # fmt: skip
FROM_GGUF = [
    name
    for name in [*FAMILIES, *VARIANTS]
    if name in FURTHER or (ARCHITECTURES.get(name, name) in NAMES and name not in ("llama", "qwen2"))
]
COMPUTE_THE_SAME = {
    "baichuan": "llama-equal",
    "internlm2": "llama",
    "minicpm": "granite-plain",
}  # of architectures that transformers lacks


@pytest.mark.parametrize("architecture", COMPUTE_THE_SAME)
def test_families_that_transformers_lacks_from_gguf(architecture: str, written: Write, kernel_set: KernelSet) -> None:
    file = written(COMPUTE_THE_SAME[architecture], "Q8_0", lambda _: GgmlType.Q8_0, architecture)
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **TIGHT)


@pytest.mark.many_cases
@pytest.mark.parametrize("name", FROM_GGUF)
def test_every_family_from_gguf(name: str, written: Write, kernel_set: KernelSet) -> None:
    file = written(name, "Q8_0", lambda _: GgmlType.Q8_0)
    bound = RECURRENT if name in ("mamba", "qwen3_5_moe") else TIGHT
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **bound)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "F16"])
def test_stacks_of_experts_of_every_kind_of_block(kind: str, written: Write, kernel_set: KernelSet) -> None:
    file = written("mixtral", kind, lambda _: GgmlType[kind])
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **TIGHT)


def test_gates_and_ups_of_experts_stored_unlike(written: Write, kernel_set: KernelSet) -> None:
    file = written("mixtral", "mixed", lambda name: GgmlType.Q8_0 if "ffn_up" in name else GgmlType.Q5_0)
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **TIGHT)


def test_llama3_scaling_from_rope_freqs(written: Write, kernel_set: KernelSet) -> None:
    file = written("llama-llama3", "F32", lambda _: GgmlType.F32)
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **TIGHT)


def test_tiled_value_heads_keep_their_states_between_chunks(written: Write, kernel_set: KernelSet) -> None:
    """A layer has a state for each tile of its value heads."""
    file = written("qwen3_5", "Q8_0", lambda _: GgmlType.Q8_0)
    facts, bounds = read_model_facts(file.path), execution_of(max_model_len=64)
    driver = Driver(bind(facts, kernel_set, precision(facts, None), bounds), bounds)
    sequence = driver.sequence(PROMPT)
    for size in (1, 5, 7):
        driver.step([(sequence, size)], sample=[False])
    last = driver.step([(sequence, len(PROMPT) - 13)])[0]
    np.testing.assert_allclose(last, expected(file)[-1], **TIGHT)


def test_adapters_have_no_place_where_value_heads_lie_in_another_order(written: Write) -> None:
    file = written("qwen3_5", "Q8_0", lambda _: GgmlType.Q8_0)
    placed = set(filter(place_filter(trained_weights(read_model_facts(file.path), 64), None), SOME_PLACES))
    assert placed == {"layers.0.gate", "layers.3.q"}


def mixed(name: str) -> GgmlType:
    """Mixes types like llama.cpp's Q4_K_M: values and down projections have a finer type than the others."""
    return GgmlType.Q8_0 if "attn_v" in name or "ffn_down" in name or "output" in name else GgmlType.Q5_1


def test_parts_of_different_layouts_stay_apart(written: Write, kernel_set: KernelSet) -> None:
    file = written("qwen2", "mixed", mixed)
    np.testing.assert_allclose(logits(file, kernel_set), expected(file), **TIGHT)


def test_bf16_weights_of_quantized_files(written: Write, kernel_set: KernelSet) -> None:
    file = written("qwen2", "Q4_0", lambda _: GgmlType.Q4_0)
    assert deviation(logits(file, kernel_set, dense="bf16"), expected(file)) < BF16_WEIGHTS
