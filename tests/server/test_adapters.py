"""Adapters served beside their model, against models into which they are merged."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_model
from tests.models.adapters import make_adapter
from tests.server.harness import encode
from tests.server.pooling.conftest import Served

NAMES = ("first", "second", "third")
RANKS = (4, 8, 2)
PROMPT = encode("Once upon a time there was")
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: base
model: {{source: {folder}, dtype: float32}}
cache: {{dtype: float32, num_blocks: 256}}
loading: {{keep_packed: false}}
hardware: {{kernels: {{quantize_activations: false}}}}
lora:
  max_loras: 2
  max_rank: 8
  adapters:
    - {{name: first, source: ./first}}
    - {{name: second, source: ./second, base_model_name: parent}}
    - {{name: third, source: ./third, scale: 0.5}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapted")
    make_random_model(path)
    (path / "spec.yaml").write_text(SPEC.format(folder=path))
    return path


@pytest.fixture(scope="module")
def oracles(folder: Path) -> dict[str, Any]:
    """The model, and those with each adapter merged, whose folders are made."""
    base = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    merged = {
        name: make_adapter(base, folder / name, seed, rank)
        for seed, (name, rank) in enumerate(zip(NAMES, RANKS, strict=True))
    }
    _halve(base, merged["third"])
    return {"base": base, **merged}


@torch.no_grad()
def _halve(base: Any, merged: Any) -> None:
    """Takes half of the change away."""
    for before, after in zip(base.parameters(), merged.parameters(), strict=True):
        after += (before - after) / 2


@pytest.fixture(scope="module")
def served(folder: Path, oracles: dict[str, Any]) -> Iterator[Served]:
    running = Served(prepare(folder / "spec.yaml").plan, oracles["base"], folder)
    yield running
    running.close()


def expected(model: Any, prompt: list[int], count: int = 12) -> list[int]:
    with torch.no_grad():
        made = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None)
    return [int(token) for token in made[0, len(prompt) :]]


def answered(served: Served, model: str, prompt: list[int], **fields: Any) -> list[int]:
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    answer = served.ok("/v1/completions", model=model, prompt=prompt, **body)
    assert answer["model"] == model
    found: list[int] = answer["choices"][-1]["token_ids"]
    return found


def test_each_name_answers_like_merged_weights(served: Served, oracles: dict[str, Any]) -> None:
    wanted = {name: expected(model, PROMPT) for name, model in oracles.items()}
    assert len({tuple(tokens) for tokens in wanted.values()}) == len(oracles), "the adapters change the answers"
    for name, tokens in wanted.items():
        assert answered(served, name, PROMPT) == tokens, name
        assert answered(served, name, PROMPT, n=2) == tokens, name  # from the prefix cache, and forked


def test_more_adapters_than_slots_answer_at_once(served: Served, oracles: dict[str, Any]) -> None:
    names = [*oracles] * 6
    prompts = [[*PROMPT, *encode(str(number))] for number in range(len(names))]
    wanted = [expected(oracles[name], prompt) for name, prompt in zip(names, prompts, strict=True)]
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda at: answered(served, names[at], prompts[at]), range(len(names))))
    assert found == wanted


def test_models_are_listed_with_root_and_parent(served: Served, folder: Path) -> None:
    cards = {card["id"]: card for card in served.get("/v1/models").json()["data"]}
    assert [*cards] == ["base", *NAMES]
    assert (cards["base"]["root"], cards["base"]["parent"]) == ("base", None)
    assert (cards["first"]["root"], cards["first"]["parent"]) == (str(folder / "first"), "base")
    assert cards["second"]["parent"] == "parent"


def test_other_names_are_refused(served: Served) -> None:
    answer = served.post("/v1/completions", {"model": "fourth", "prompt": "x"})
    assert answer.status_code == 404
    assert "base, first, second, third" in answer.json()["error"]["message"]
