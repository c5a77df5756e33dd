"""`instructor`: typed answers in each mode, whole, in part and as a list."""

from collections.abc import Iterable
from typing import Any

import anthropic
import instructor
import openai
import pytest
from instructor.core.exceptions import InstructorRetryException
from served import BASE, KEY, MODEL, ROOT

ADA: list[Any] = [{"role": "user", "content": "Ada Lovelace is 36 years old. Answer as JSON."}]
GREEDY = {"temperature": 0}
MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.MD_JSON]


def ask(client: Any, kind: Any, **options: Any) -> Any:
    return client.create(
        model=MODEL, messages=ADA, response_model=kind, extra_body=GREEDY, max_tokens=120, max_retries=0, **options
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_typed_answer(person: Any, mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0), mode=mode)
    answer = ask(client, person)
    assert (answer.name, answer.age) == ("Ada Lovelace", 36)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_streamed(person: Any, mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0), mode=mode)
    states = list(client.create_partial(
        model=MODEL, messages=ADA, response_model=person, temperature=0, max_tokens=120, max_retries=0
    ))  # fmt: skip
    assert len(states) > 2
    assert (states[-1].name, states[-1].age) == ("Ada Lovelace", 36)
    assert all(isinstance(each, person) for each in ask(client, Iterable[person], stream=True))


async def test_async(person: Any) -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0))
    assert (await ask(client, person)).age == 36


def test_over_anthropics_messages(person: Any) -> None:
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0))
    assert ask(client, person).age == 36


def test_usage_comes_with_the_answer(person: Any) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0))
    answer, completion = client.create_with_completion(
        model=MODEL, messages=ADA, response_model=person, temperature=0, max_tokens=120
    )
    assert answer.age == 36
    assert completion.usage.completion_tokens > 0


def test_errors_are_the_clients_own(person: Any) -> None:
    clients: list[Any] = [
        instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)),
        instructor.from_anthropic(anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)),
    ]
    for client, kind in zip(clients, (openai.NotFoundError, anthropic.NotFoundError), strict=True):
        with pytest.raises(InstructorRetryException) as refused:
            client.create(model="no-such", messages=ADA, response_model=person, max_tokens=20, max_retries=1)
        assert isinstance(refused.value.__cause__, kind)
