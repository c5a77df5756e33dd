"""Models that pool give the vectors and scores of transformers, many prompts in one step, at every kernel set."""

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from appliance.catalog.pooling import PoolingKind
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.engine.profiler import StepProfiler
from appliance.kernels.interface import Executable, KernelSet, StepInputs
from tests.kernels.harness import logits_of
from tests.models.gguf_pooled import GGUF_POOLED, write_pooled
from tests.models.tiny_pooled import LENGTHS, POOLED, make_pooled, pooled_by_torch
from tests.parity.harness import BLOCK_SIZE, GROUPS, bind, execution_of

Made = tuple[ModelFacts, torch.nn.Module]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    kept: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in kept:
            folder: Path = tmp_path_factory.mktemp(name)
            oracle = make_pooled(name, folder)
            kept[name] = read_model_facts(folder), oracle
        return kept[name]

    return get


def prompts() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(4, 96, length).tolist() for length in LENGTHS]


def run_whole(executable: Executable, texts: list[list[int]], kind: PoolingKind) -> list[np.ndarray]:
    """Runs prompts whole in one step; returns what is pooled of each: [W], or [n, W] if all tokens are."""
    lengths = [len(text) for text in texts]
    starts = np.cumsum([0, *lengths])
    positions = np.concatenate([np.arange(length) for length in lengths])
    widths = [-(-length // BLOCK_SIZE) for length in lengths]
    tables = np.zeros((GROUPS, len(texts), max(widths)), np.int32)
    for row, width in enumerate(widths):
        first = sum(widths[:row])
        tables[:, row, :width] = np.arange(first, first + width) * GROUPS + np.arange(GROUPS)[:, None]
    rows = np.repeat(np.arange(len(texts)), lengths)
    slots = tables[:, rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    wanted = {"cls": starts[:-1], "all": np.arange(starts[-1])}.get(kind, starts[1:] - 1)
    values = (list(chain(*texts)), positions, slots, starts, lengths, tables, wanted)
    found = logits_of(executable, StepInputs(*(np.ascontiguousarray(each, np.int32) for each in values)))
    return [found[at:end] for at, end in pairwise(starts)] if kind == "all" else list(found)


def test_an_encoder_with_windows_can_be_profiled(made: Callable[[str], Made], kernel_set: KernelSet) -> None:
    """It keeps no keys, so no group of caches has the windows of its layers."""
    facts, _ = made("modernbert-mean")
    executable = bind(facts, kernel_set, execution=execution_of(64), pooling=POOLED["modernbert-mean"].choice)
    profiler = StepProfiler(executable, BLOCK_SIZE, windows=())
    run_whole(executable, prompts(), "mean")
    assert profiler.finish().kinds == {}  # no step of an engine ended
    executable.close()


@pytest.mark.parametrize("name", POOLED)
def test_vectors_are_those_of_transformers(name: str, made: Callable[[str], Made], kernel_set: KernelSet) -> None:
    facts, oracle = made(name)
    pooled, texts = POOLED[name], prompts()
    executable = bind(facts, kernel_set, execution=execution_of(64), pooling=pooled.choice)
    found = run_whole(executable, texts, pooled.kind)
    assert len(found) == len(texts)
    for text, vector in zip(texts, found, strict=True):
        expected = pooled_by_torch(name, oracle, text).numpy()
        assert vector.shape == expected.shape
        np.testing.assert_allclose(vector, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
    executable.close()


def test_the_head_of_internlm2s_reward_model(tmp_path: Path, kernel_set: KernelSet) -> None:
    oracle = make_pooled("qwen3-tokens", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name.replace("score.", "v_head."): each for name, each in tensors.items()}, tmp_path / "model.safetensors"
    )
    executable = bind(
        read_model_facts(tmp_path), kernel_set, execution=execution_of(64), pooling=POOLED["qwen3-tokens"].choice
    )
    text = prompts()[1]
    (found,) = run_whole(executable, [text], "all")
    expected = pooled_by_torch("qwen3-tokens", oracle, text).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
    executable.close()


@pytest.mark.parametrize("name", GGUF_POOLED)
def test_vectors_from_gguf_are_those_of_transformers(name: str, tmp_path: Path, kernel_set: KernelSet) -> None:
    path, oracle = write_pooled(name, tmp_path)
    facts, choice, texts = read_model_facts(path), POOLED[name].choice, prompts()
    assert (facts.sentence is not None and facts.sentence.kind) == (choice.task == "embed" and choice.kind)
    executable = bind(facts, kernel_set, execution=execution_of(64), pooling=choice)
    found = run_whole(executable, texts, choice.kind)
    assert len(found) == len(texts)
    for text, vector in zip(texts, found, strict=True):
        expected = pooled_by_torch(name, oracle, text).numpy()
        np.testing.assert_allclose(vector, expected, rtol=1e-3, atol=2e-3 * np.abs(expected).max())
    executable.close()


@pytest.mark.parametrize("name", ["bert-mean", "roberta-cls"])
def test_a_vector_does_not_depend_on_its_batch(name: str, made: Callable[[str], Made], kernel_set: KernelSet) -> None:
    facts, _ = made(name)
    kind, texts = POOLED[name].kind, prompts()
    executable = bind(facts, kernel_set, execution=execution_of(64), pooling=POOLED[name].choice)
    together = [vector.copy() for vector in run_whole(executable, texts, kind)]
    alone = [run_whole(executable, [text], kind)[0].copy() for text in texts]
    assert len(together) == len(alone) == len(LENGTHS)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    executable.close()
