"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from appliance.engine.scripted import Script
from tests.server.harness import Server, continues, running, says

REPLIES = [
    says("greet", "hello world"),
    says("stop", "one STOP two"),
    says("unicode", "caf\u00e9 \U0001f600 \u5317\u4eac"),
    says("count", "1 2 3 4 5 6 7 8 9"),
    continues("Say: ", "hello world"),
    continues("Also: ", "hell no"),
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(
        tmp_path_factory.mktemp("server"), Script(replies=REPLIES), server_load_tracking=True
    ) as running_server:
        yield running_server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client
