"""A model whose code comes with the checkpoint, through the server: same tokens as transformers, streamed and whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import torch
import transformers

from tests.e2e.served import make_random_model, serving
from tests.modelling.checkpoints import bring_own_code
from tests.server.harness import encode

PROMPTS = ["Hello there", "A longer prompt, which crosses a few blocks of the cache."]
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder, context=256)
    bring_own_code(folder)
    return folder


def continued(model: Path, prompt: list[int]) -> list[int]:
    """Greedy tokens by transformers."""
    oracle = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(LENGTH):
            tokens.append(int(oracle(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_a_model_of_its_own_code_is_served(model: Path, tmp_path: Path) -> None:
    settings = ("model.trust_remote_code=true", "model.dtype=float32", "hardware.num_threads=1")
    with serving(tmp_path, model, *settings, "cache.num_blocks=256") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        def whole(prompt: list[int]) -> str:
            answer = client.completions.create(model="random", prompt=prompt, max_tokens=LENGTH, temperature=0)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == LENGTH
            return answer.choices[0].text

        prompts = [encode(prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor() as pool:
            texts = list(pool.map(whole, prompts))
        ids = [continued(model, prompt) for prompt in prompts]
        with server.http() as http:
            expected = [http.post("/detokenize", json={"tokens": each}).json()["prompt"] for each in ids]
        assert texts == expected
        stream = client.completions.create(
            model="random", prompt=prompts[1], max_tokens=LENGTH, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == texts[1]
        assert "modeling_tiny_own.py" in server.log.read_text()
