"""`pydantic-ai`: agents over chat completions, Responses and Anthropic's Messages."""

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic_ai import Agent, NativeOutput, RunContext, ToolDefinition, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from served import BASE, KEY, MODEL, ROOT

SETTINGS: Any = {"extra_body": {"temperature": 0}, "max_tokens": 120}
ADA = "Ada Lovelace is 36 years old. Who is it?"


@pytest.fixture(params=["chat", "responses", "messages"])
def way(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def model(way: str) -> Model:
    return served_model(way, MODEL)


def served_model(way: str, name: str) -> Model:
    if way == "messages":
        client = AsyncAnthropic(base_url=ROOT, api_key=KEY, max_retries=0)
        # Whether a model has output_config.format is known to this library by Claude's names; others are told it.
        profile: Any = {"supports_json_schema_output": True}
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client), profile=profile)
    kind = OpenAIChatModel if way == "chat" else OpenAIResponsesModel
    return kind(name, provider=OpenAIProvider(base_url=BASE, api_key=KEY))


async def test_text(model: Model) -> None:
    agent = Agent(model, instructions="You answer in one word.", model_settings=SETTINGS)
    result = await agent.run("What is the capital of France?")
    assert "Paris" in result.output
    assert result.usage.output_tokens > 0
    async with agent.run_stream("What is the capital of France?") as streamed:
        assert [piece async for piece in streamed.stream_text(debounce_by=None)][-1] == result.output


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
async def test_output_of_a_type(model: Model, person: Any, kind: Any) -> None:
    agent = Agent(model, output_type=kind(person), model_settings=SETTINGS)
    output = (await agent.run(ADA)).output
    assert (output.name, output.age) == ("Ada Lovelace", 36)
    async with agent.run_stream(ADA) as streamed:
        assert await streamed.get_output() == output


async def test_a_tool_is_called_and_its_answer_told(model: Model) -> None:
    asked = []
    agent = Agent(model, model_settings=SETTINGS)

    async def once(context: RunContext, definition: ToolDefinition) -> ToolDefinition | None:
        """A 0.5B model calls a tool again whose result it has just got."""
        return None if asked else definition

    @agent.tool_plain(prepare=once)
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "11 degrees and rain"

    result = await agent.run("What is the weather in Oslo? Use the tool.")
    assert asked
    assert result.output
    again = await agent.run("In one word: which city was it?", message_history=result.all_messages())
    assert again.output


async def test_errors_are_the_clients_own(way: str) -> None:
    with pytest.raises(ModelHTTPError) as refused:
        await Agent(served_model(way, "no-such")).run("Say hello")
    assert refused.value.status_code == 404
