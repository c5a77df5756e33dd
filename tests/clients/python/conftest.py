"""What several suites ask for."""

from typing import Any

import pytest
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def person() -> type[BaseModel]:
    return Person


@pytest.fixture
def weather() -> dict[str, Any]:
    """A tool in OpenAI's form."""
    return {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
