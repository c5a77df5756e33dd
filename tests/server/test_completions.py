"""Completions through the official client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types.completion_choice import CompletionChoice

from appliance.server.output.answers import EventWriter, Tally, UsageRule
from appliance.service.requests import TextOutput
from tests.server.harness import Server, encode

PROMPT = "Say: "


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(model="scripted", prompt=prompt, **options)


@pytest.fixture
def lenient(server: Server) -> Iterator[openai.OpenAI]:
    """The client's types know no null where OpenAI itself sends one: unfinished completion chunks, a first logprob."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(client: openai.OpenAI, prompt: Any, count: int = 1, **options: Any) -> list[str]:
    texts = [""] * count
    for chunk in complete(client, prompt, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


@pytest.mark.parametrize(
    "prompt", [PROMPT, [PROMPT], encode(PROMPT), [encode(PROMPT)]], ids=["text", "texts", "ids", "lists"]
)
def test_forms_of_a_prompt(client: openai.OpenAI, lenient: openai.OpenAI, prompt: Any) -> None:
    answer = complete(client, prompt)
    assert [choice.text for choice in answer.choices] == ["hello world"]
    assert answer.usage.prompt_tokens == len(encode(PROMPT))
    assert streamed(lenient, prompt) == ["hello world"]


def test_batch_of_prompts_with_n(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    prompts = [PROMPT, "Also: "]
    answer = complete(client, prompts, n=2)
    texts = ["hello world", "hello world", "hell no", "hell no"]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert streamed(lenient, prompts, 4, n=2) == texts


def test_default_length(client: openai.OpenAI) -> None:
    answer = complete(client, "unknown")
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("prompt", [PROMPT, encode(PROMPT)], ids=["text", "ids"])
def test_echo(client: openai.OpenAI, lenient: openai.OpenAI, prompt: Any) -> None:
    assert complete(client, prompt, echo=True).choices[0].text == "Say: hello world"
    assert streamed(lenient, prompt, echo=True) == ["Say: hello world"]


def test_logprobs(client: openai.OpenAI) -> None:
    logprobs = complete(client, PROMPT, logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["hello", " ", "world", "<|end|>"]
    assert logprobs.text_offset == [0, 5, 6, 11]
    assert len(logprobs.token_logprobs) == 4
    assert len(logprobs.top_logprobs) == 4
    assert all(len(top) in (2, 3) for top in logprobs.top_logprobs)


def test_echo_with_logprobs_covers_the_prompt(lenient: openai.OpenAI) -> None:
    whole = complete(lenient, PROMPT, logprobs=1, echo=True).choices[0].logprobs
    assert whole.tokens == ["S", "a", "y", ":", " ", "hello", " ", "world", "<|end|>"]
    assert whole.token_logprobs[0] is None
    assert all(value is not None for value in whole.token_logprobs[1:])
    assert whole.text_offset[5] == len(PROMPT)
    tokens: list[str] = []
    for chunk in complete(lenient, PROMPT, logprobs=1, echo=True, stream=True):
        tokens += chunk.choices[0].logprobs.tokens if chunk.choices[0].logprobs else []
    assert tokens == whole.tokens


def test_scoring_a_prompt_generates_nothing(lenient: openai.OpenAI) -> None:
    answer = complete(lenient, PROMPT, logprobs=0, echo=True, max_tokens=0)
    assert answer.choices[0].text == PROMPT
    assert answer.choices[0].logprobs.tokens == ["S", "a", "y", ":", " "]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 0


def test_usage_of_a_stream(lenient: openai.OpenAI) -> None:
    chunks = list(complete(lenient, PROMPT, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.total_tokens == len(encode(PROMPT)) + 4


def test_special_tokens_can_be_shown(client: openai.OpenAI) -> None:
    shown: dict[str, Any] = {"skip_special_tokens": False}
    begun = complete(client, PROMPT, max_tokens=1, extra_body={**shown, "logit_bias": {"1": 100}})
    assert begun.choices[0].text == "<|begin|>"
    assert complete(client, PROMPT, extra_body=shown).choices[0].text == "hello world"
    whole = complete(client, PROMPT, extra_body={**shown, "include_stop_str_in_output": True})
    assert whole.choices[0].text == "hello world<|end|>"


def test_prompt_is_truncated_from_the_left(client: openai.OpenAI) -> None:
    answer = complete(client, "xxxxxxxxxSay: ", extra_body={"truncate_prompt_tokens": 5})
    assert answer.choices[0].text == "hello world"
    assert answer.usage.prompt_tokens == 5


def test_ignore_eos(client: openai.OpenAI) -> None:
    answer = complete(client, PROMPT, max_tokens=6, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 6
    assert answer.choices[0].finish_reason == "length"


def test_min_tokens_outlast_a_stop_string(client: openai.OpenAI) -> None:
    assert complete(client, PROMPT, stop="hello").choices[0].text == ""
    answer = complete(client, PROMPT, stop="hello", extra_body={"min_tokens": 2})
    assert answer.choices[0].text == "hello world"


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    answer = complete(client, PROMPT, extra_body={"prompt_logprobs": 0})
    entries = answer.choices[0].prompt_logprobs
    assert entries[0] is None
    assert [next(iter(entry.values()))["decoded_token"] for entry in entries[1:]] == ["a", "y", ":", " "]


def test_unfinished_chunks_have_null_for_a_reason() -> None:
    """As OpenAI's and vLLM's. The types of the client leave no better choice: they refuse null and absence alike."""
    writer = EventWriter(b'{"choices":', b',"text":', b"", UsageRule(at_end=False, always=False), Tally(1, False))
    output = TextOutput(index=0, text="a", token_ids=[1])
    (choice,) = json.loads(writer.event(output, "a", None))["choices"]
    assert choice == {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
    for unfinished in (choice, {"index": 0, "text": "a"}):
        with pytest.raises(pydantic.ValidationError, match="finish_reason"):
            CompletionChoice.model_validate(unfinished)
