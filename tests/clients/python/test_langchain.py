"""LangChain's own integration suite, through `langchain-openai`: over chat completions, and over Responses."""

from typing import Any

import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from served import BASE, KEY, MODEL


class Suite(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        server = {"model": MODEL, "base_url": BASE, "api_key": KEY, "max_retries": 0, "stream_usage": True}
        # A small model goes round in circles in a text of a schema; the grammar allows it, and so no answer ends.
        calm = {"frequency_penalty": 1.0}
        return {**server, "temperature": 0, "seed": 1, "max_tokens": 400, "extra_body": calm}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return MODEL


class TestChatCompletions(Suite):
    pass


class TestResponses(Suite):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        params = super().chat_model_params
        params.pop("seed")  # Responses have none
        return {**params, "use_responses_api": True}


def test_errors_are_the_clients_own() -> None:
    for responses in (False, True):
        model = ChatOpenAI(
            model="no-such", base_url=BASE, api_key=KEY, max_retries=0, use_responses_api=responses
        )  # fmt: skip
        with pytest.raises(openai.NotFoundError):
            model.invoke("Say hello")
