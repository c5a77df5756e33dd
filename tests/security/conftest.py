"""One server with every route and two keys for all tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.security.surface import everything
from tests.server.harness import Server, running, says

KEYS = {"alice": "sk-alice-secret", "bob": "sk-bob-secret"}


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    plan = {**everything(), "key_hashes": {name: key_hash(key) for name, key in KEYS.items()}}
    with running(tmp_path_factory.mktemp("guarded"), Script(replies=[says("greet", "hello")]), **plan) as server:
        yield server


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = Script(replies=[says("greet", "hello world"), says("neighbour", "one two three four five")])
    plan = {**everything(), "max_body_bytes": 4 << 20}
    with running(tmp_path_factory.mktemp("open"), script, **plan) as server:
        yield server


@pytest.fixture
def alice(guarded: Server) -> Iterator[httpx.Client]:
    with guarded.http(headers={"authorization": f"Bearer {KEYS['alice']}"}) as http:
        yield http


@pytest.fixture
def bob(guarded: Server) -> Iterator[httpx.Client]:
    with guarded.http(headers={"authorization": f"Bearer {KEYS['bob']}"}) as http:
        yield http


@pytest.fixture
def http(open_server: Server) -> Iterator[httpx.Client]:
    with open_server.http() as client:
        yield client
