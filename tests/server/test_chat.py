"""Chat completions through the official client."""

from typing import Any

import httpx
import openai
import pytest


def ask(client: openai.OpenAI, message: str, **options: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": message}], **options)


def test_whole_answer(client: openai.OpenAI) -> None:
    answer = ask(client, "greet")
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "scripted"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.prompt_tokens == len("<user>greet</><assistant>")
    assert answer.usage.completion_tokens == 4  # hello, space, world, end
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_answer(client: openai.OpenAI) -> None:
    chunks = list(ask(client, "unicode", stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "caf\u00e9 \U0001f600 \u5317\u4eac"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all("\N{REPLACEMENT CHARACTER}" not in (chunk.choices[0].delta.content or "") for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_at_the_end_of_a_stream(client: openai.OpenAI) -> None:
    chunks = list(ask(client, "greet", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_with_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(client, "greet", stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "stop", stop=["STOP", "never"], stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        end = chunks[-1].choices[0]
    else:
        text, end = answer.choices[0].message.content, answer.choices[0]
    assert text == "one "
    assert end.finish_reason == "stop"
    assert end.stop_reason == "STOP"


def test_stop_string_in_output(client: openai.OpenAI) -> None:
    answer = ask(client, "stop", stop="STOP", extra_body={"include_stop_str_in_output": True})
    assert answer.choices[0].message.content == "one STOP"


def test_stop_token(client: openai.OpenAI) -> None:
    space = 2 + ord(" ")
    answer = ask(client, "count", extra_body={"stop_token_ids": [space]})
    assert answer.choices[0].message.content == "1"
    assert answer.choices[0].stop_reason == space
    shown = ask(client, "count", extra_body={"stop_token_ids": [space], "include_stop_str_in_output": True})
    assert shown.choices[0].message.content == "1 "
    assert shown.usage.completion_tokens == answer.usage.completion_tokens == 2
    streamed = ask(client, "count", stream=True, extra_body={"stop_token_ids": [space]})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "1"


def test_several_answers(client: openai.OpenAI) -> None:
    answer = ask(client, "greet", n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"hello world"}
    assert answer.usage.completion_tokens == 12
    streamed = ["", "", ""]
    for chunk in ask(client, "greet", n=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == ["hello world"] * 3


def test_several_answers_with_a_stop_string(client: openai.OpenAI) -> None:
    answer = ask(client, "stop", n=2, stop="STOP")
    assert [choice.message.content for choice in answer.choices] == ["one ", "one "]


def test_length(client: openai.OpenAI) -> None:
    answer = ask(client, "count", max_completion_tokens=3)
    assert answer.choices[0].message.content == "1 2"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_logprobs(client: openai.OpenAI) -> None:
    answer = ask(client, "greet", logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["hello", " ", "world", "<|end|>"]
    assert bytes(content[0].bytes) == b"hello"
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].top_logprobs[0].token == "hello"
    assert content[0].logprob == content[0].top_logprobs[0].logprob


def test_streamed_logprobs_equal_whole_ones(client: openai.OpenAI) -> None:
    whole = ask(client, "greet", logprobs=True, top_logprobs=1).choices[0].logprobs.content
    streamed = []
    for chunk in ask(client, "greet", logprobs=True, top_logprobs=1, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == whole


def test_tokens_as_ids(client: openai.OpenAI) -> None:
    answer = ask(client, "greet", logprobs=True, extra_body={"return_tokens_as_token_ids": True})
    assert answer.choices[0].logprobs.content[-1].token == "token_id:0"


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    answer = ask(client, "greet", extra_body={"prompt_logprobs": 1})
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens


def test_parts_become_text(client: openai.OpenAI) -> None:
    content = [{"type": "text", "text": "greet"}]
    messages: Any = [{"role": "user", "content": content}]
    assert client.chat.completions.create(model="alias", messages=messages).choices[0].message.content == "hello world"


def test_standard_fields_that_change_nothing(client: openai.OpenAI) -> None:
    answer = ask(
        client, "greet", user="u", metadata={"a": "b"}, service_tier="auto", store=False, tools=[], tool_choice="none"
    )
    assert answer.choices[0].message.content == "hello world"


def test_notes_that_litellm_sends_back_are_passed_over(client: openai.OpenAI) -> None:
    answered: Any = {"role": "assistant", "content": "x", "provider_specific_fields": {"refusal": None}}
    messages: Any = [{"role": "user", "content": "y"}, answered, {"role": "user", "content": "greet"}]
    assert client.chat.completions.create(model="scripted", messages=messages, max_tokens=3).usage


def test_request_id_is_the_clients(client: openai.OpenAI) -> None:
    assert ask(client, "greet", extra_body={"request_id": "mine"}).id == "chatcmpl-mine"


def test_continue_final_message(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "greet"}, {"role": "assistant", "content": "hello"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(model="scripted", messages=messages, extra_body=options)
    assert answer.choices[0].message.content == " world"
    echoed = client.chat.completions.create(model="scripted", messages=messages, extra_body={**options, "echo": True})
    assert echoed.choices[0].message.content == "hello world"


@pytest.mark.parametrize("content", ["|", ">", "</", "x ", "<|end|>"])
def test_a_continued_prompt_ends_with_the_message(http: httpx.Client, content: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    tokens = http.post("/tokenize", json={"messages": messages, **options}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == f"<user>a</><assistant>{content}"


def test_greedy_and_seeded_parameters_are_taken(client: openai.OpenAI) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "bad_words": ["zzz"],
        "cache_salt": "s",
    }
    answer = ask(
        client,
        "greet",
        temperature=0.5,
        top_p=0.9,
        seed=1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        extra_body=extra,
    )
    assert answer.choices[0].message.content == "hello world"


def test_logit_bias_and_allowed_tokens(client: openai.OpenAI) -> None:
    token = 2 + ord("!")
    answer = ask(client, "greet", max_tokens=2, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == "!!"
    answer = ask(client, "greet", max_tokens=2, extra_body={"allowed_token_ids": [token]})
    assert answer.choices[0].message.content == "!!"
