"""Real models, greedy, against transformers: 20 prompts of 64 tokens, alone, batched, chunked and from cached prefixes.

Runs where APPLIANCE_TEST_MODELS names the folder of the .gguf files; APPLIANCE_TEST_CACHE keeps transformers' answers.
A token may differ only where transformers' own two best logits are nearly equal; such ties are printed.
"""

import os
from pathlib import Path

import pytest

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import load_kernel_set
from tests.parity.conftest import kernel_set_names
from tests.parity.harness import Driver, bind, execution_of, precision
from tests.parity.real_oracle import NUM_TOKENS, Answer, oracle_answers

MODELS = ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "gemma-3-270m-q4_k_m.gguf")
TIE = 2e-3  # of logits of size 10 to 30: f32 sums of another order over a thousand terms and two dozen layers
LIMITS = {
    "max_model_len": 256,
    "tokens": 512,
    "sampled": 16,
    "num_blocks": 1024,
    "block_size": 16,
    "num_threads": 2,
}


pytestmark = pytest.mark.skipif(
    "APPLIANCE_TEST_MODELS" not in os.environ, reason="APPLIANCE_TEST_MODELS does not name a folder of real models"
)


@pytest.fixture(params=MODELS)
def model_file(request: pytest.FixtureRequest) -> Path:
    path = Path(os.environ["APPLIANCE_TEST_MODELS"]) / request.param
    if not path.exists():
        pytest.skip(f"{request.param} is not in the folder of real models")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return Path(os.environ.get("APPLIANCE_TEST_CACHE", tmp_path))


@pytest.mark.parametrize("weights", ["f32", "bf16"])
def test_greedy_equals_transformers(model_file: Path, weights: str, cache: Path) -> None:
    driver = real_driver(model_file, weights)
    answers = oracle_answers(model_file, weights, cache, lambda prompt: driver.greedy(prompt, NUM_TOKENS))
    alone = [driver.greedy(answer.prompt, NUM_TOKENS) for answer in answers]
    ties = [tie for answer, tokens in zip(answers, alone, strict=True) if (tie := first_difference(answer, tokens))]
    print(f"{model_file.name} {weights}: {len(answers)} prompts, {len(ties)} ties: {ties}")
    assert all(lead < TIE for _, lead in ties), ties
    prompts = [answer.prompt for answer in answers]
    assert in_batches_of_16(driver, prompts) == alone
    for prompt, tokens in zip(prompts, alone, strict=True):
        check_chunked_and_cached(driver, prompt + tokens[:40], tokens[40:48])


def check_chunked_and_cached(driver: Driver, prompt: list[int], expected: list[int]) -> None:
    chunked = driver.sequence(prompt)
    assert driver.continue_greedily(chunked, len(expected), chunk=7) == expected
    cached = driver.sequence(prompt, shared=chunked)
    assert cached.num_computed >= 32
    assert driver.continue_greedily(cached, len(expected)) == expected


def real_driver(model_file: Path, weights: str | None, **changes: object) -> Driver:
    """The best kernel set here. weights: all dense of that type; None: each in the form of its stored type."""
    facts, bounds = read_model_facts(model_file), execution_of(**(LIMITS | changes))
    kernel_set = load_kernel_set(kernel_set_names()[-1])
    return Driver(bind(facts, kernel_set, precision(facts, dense=weights), bounds), bounds)


def first_difference(answer: Answer, tokens: list[int]) -> tuple[int, float] | None:
    """Returns the first place where the tokens differ, and by how much transformers preferred its own."""
    for index, (expected, found) in enumerate(zip(answer.tokens, tokens, strict=True)):
        if expected != found:
            return index, answer.leads[index]
    return None


def in_batches_of_16(driver: Driver, prompts: list[list[int]]) -> list[list[int]]:
    made: list[list[int]] = []
    for start in range(0, len(prompts), 16):
        rows = [driver.sequence(prompt) for prompt in prompts[start : start + 16]]
        tokens: list[list[int]] = [[] for _ in rows]
        for _ in range(NUM_TOKENS):
            logits = driver.step([(row, len(row.token_ids) - row.num_computed) for row in rows])
            for row, list_, best in zip(rows, tokens, logits.argmax(axis=1), strict=True):
                list_.append(int(best))
                row.token_ids.append(int(best))
        made += tokens
    return made


# Share of transformers' greedy tokens that are still the best after the same text: what serving gives up for speed.
@pytest.mark.parametrize(("quantize_activations", "kv_dtype", "least"), [(False, "f32", 1.0), (True, "bf16", 0.97)])
def test_stored_precision_agrees_with_transformers(
    model_file: Path, cache: Path, quantize_activations: bool, kv_dtype: str, least: float
) -> None:
    changes = {"quantize": quantize_activations, "kv_dtype": kv_dtype, "sampled": 128}
    driver = real_driver(model_file, weights=None, **changes)
    answers = oracle_answers(model_file, "f32", cache, lambda prompt: driver.greedy(prompt, NUM_TOKENS))
    same = 0
    for answer in answers:
        after = driver.all_logits(answer.prompt + answer.tokens)[len(answer.prompt) - 1 : -1]
        same += int((after.argmax(axis=1) == answer.tokens).sum())
    share = same / (len(answers) * NUM_TOKENS)
    print(f"{model_file.name} {changes}: {share:.2%} of {len(answers) * NUM_TOKENS} tokens")
    assert share >= least
