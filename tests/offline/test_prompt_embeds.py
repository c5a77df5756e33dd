"""Prompts of embeddings from Python: numpy and torch, n answers, beams, adapters, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from appliance import LLM, BeamSearchParams, EmbedsPrompt, LoRARequest, SamplingParams
from appliance.offline.errors import InvalidRequestError
from tests.offline.conftest import ARGUMENTS

TEXTS = ["Hello, my name is", "The president of"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def table(model: Path) -> np.ndarray:
    """The rows that the model has for its tokens: by default they are bf16 on a CPU."""
    stored = torch.from_numpy(load_file(model / "model.safetensors")["model.embed_tokens.weight"])
    found: np.ndarray = stored.bfloat16().float().numpy()
    return found


@pytest.fixture(scope="module")
def taking(model: Path) -> Iterator[LLM]:
    with LLM(str(model), enable_prompt_embeds=True, **ARGUMENTS) as made:
        yield made


def rows_of(llm: LLM, table: np.ndarray, text: str) -> np.ndarray:
    rows: np.ndarray = table[llm.get_tokenizer().encode(text)]
    return rows


def texts(outputs: list[Any]) -> list[list[str]]:
    return [[each.text for each in output.outputs] for output in outputs]


def test_rows_of_the_table_answer_as_their_tokens(taking: LLM, table: np.ndarray) -> None:
    rows = [rows_of(taking, table, text) for text in TEXTS]
    drawn = SamplingParams(temperature=0.9, n=3, seed=4, max_tokens=8, repetition_penalty=1.0, logprobs=2)
    for params in (GREEDY, drawn):
        expected = texts(taking.generate(TEXTS, params))
        for given in (rows, [torch.from_numpy(each) for each in rows]):
            prompts: list[EmbedsPrompt] = [{"prompt_embeds": each} for each in given]
            answers = taking.generate(prompts, params)
            assert texts(answers) == expected
            assert [each.prompt_token_ids for each in answers] == [None, None]
            assert [each.prompt for each in answers] == [None, None]
    both: list[str | EmbedsPrompt] = [TEXTS[1], {"prompt_embeds": rows[0], "prompt": TEXTS[0]}]
    [mixed, named] = taking.generate(both, GREEDY)
    assert texts([named, mixed]) == texts(taking.generate(TEXTS, GREEDY))
    assert named.prompt == TEXTS[0]


def test_narrower_numbers_are_those_that_they_are(taking: LLM, table: np.ndarray) -> None:
    rows = torch.from_numpy(rows_of(taking, table, TEXTS[0])).bfloat16()
    wide = taking.generate({"prompt_embeds": rows.float().numpy()}, GREEDY)
    assert texts(taking.generate({"prompt_embeds": rows}, GREEDY)) == texts(wide)
    half = rows_of(taking, table, TEXTS[0]).astype(np.float16)
    [answer] = taking.generate({"prompt_embeds": half}, GREEDY)
    assert len(answer.outputs[0].token_ids) == 8


def test_beams_and_adapters(taking: LLM, table: np.ndarray, adapter: Path) -> None:
    rows = rows_of(taking, table, TEXTS[0])
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    prompt: EmbedsPrompt = {"prompt_embeds": rows}
    [ids], [given] = taking.beam_search([TEXTS[0]], params), taking.beam_search([prompt], params)
    length = len(taking.get_tokenizer().encode(TEXTS[0]))
    assert [each.tokens for each in given.sequences] == [each.tokens[length:] for each in ids.sequences]
    adapted = LoRARequest("a", 1, str(adapter))
    expected = taking.generate(TEXTS[0], GREEDY, lora_request=adapted)
    assert texts(taking.generate({"prompt_embeds": rows}, GREEDY, lora_request=adapted)) == texts(expected)
    assert texts(expected) != texts(taking.generate(TEXTS[0], GREEDY))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt_embeds": np.zeros((3, 65), np.float32)}, r"\[tokens, 64\]"),
        ({"prompt_embeds": np.zeros((0, 64), np.float32)}, "at least one token"),
        ({"prompt_embeds": np.zeros((3, 64), np.int64)}, "floats are expected"),
        ({"prompt_embeds": np.full((3, 64), np.nan, np.float32)}, "not finite"),
        ({"prompt_embeds": np.zeros((600, 64), np.float32)}, "600 tokens"),
        ({"prompt_embeds": [[0.0] * 64]}, "an array of numpy or torch"),
        ({"prompt_embeds": np.zeros((3, 64)), "prompt_token_ids": [1]}, "both"),
        ({"cache_salt": "a"}, "none of 'prompt'"),
    ],
)
def test_what_is_wrong_is_named(taking: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        taking.generate(prompt, GREEDY)


def test_log_probabilities_of_the_prompt_are_refused(taking: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens whose log-probabilities"):
        taking.generate({"prompt_embeds": np.zeros((3, 64), np.float32)}, SamplingParams(prompt_logprobs=1))


def test_an_engine_without_the_field_refuses_them(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"model\.enable_prompt_embeds"):
        llm.generate({"prompt_embeds": np.zeros((3, 64), np.float32)}, GREEDY)
