"""What the official clients make of refusals: their own error classes, and a second try where Retry-After allows it."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says

GREET: list[Any] = [{"role": "user", "content": "greet"}]
ENDLESS: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 450}
RULES: dict[str, dict[str, Any]] = {"free": {}, "one": {"max_concurrency": 1}, "aliased": {"models": ["alias"]}}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    plan: dict[str, Any] = {"key_hashes": {name: key_hash(name) for name in RULES}, "key_rules": RULES}
    script = Script(replies=[says("greet", "hello")], step_seconds=0.02)
    with running(tmp_path_factory.mktemp("keyed"), script, **plan) as server:
        yield server


def ask_openai(server: Server, key: str, **changes: Any) -> Any:
    options: dict[str, Any] = {"max_retries": 0, **changes.pop("options", {})}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, **options) as client:
        return client.chat.completions.create(**{"model": "scripted", "messages": GREET, **changes})


def ask_anthropic(server: Server, key: str, **changes: Any) -> Any:
    options: dict[str, Any] = {"max_retries": 0, **changes.pop("options", {})}
    with anthropic.Anthropic(base_url=server.url, api_key=key, **options) as client:
        return client.messages.create(**{"model": "scripted", "messages": GREET, "max_tokens": 9, **changes})


CLIENTS = pytest.mark.parametrize(
    ("ask", "errors"), [(ask_openai, openai), (ask_anthropic, anthropic)], ids=["openai", "anthropic"]
)


@CLIENTS
def test_each_refusal_is_an_error_of_the_clients_own(keyed: Server, ask: Any, errors: Any) -> None:
    assert ask(keyed, "free").usage
    with pytest.raises(errors.AuthenticationError):
        ask(keyed, "wrong")
    with pytest.raises(errors.PermissionDeniedError):
        ask(keyed, "aliased")
    with pytest.raises(errors.NotFoundError):
        ask(keyed, "free", model="no-such")
    with pytest.raises(errors.BadRequestError):
        ask(keyed, "free", messages=[])
    with pytest.raises(errors.APITimeoutError):
        ask(keyed, "free", **ENDLESS, options={"timeout": 0.05})


@CLIENTS
def test_a_refusal_for_the_time_is_tried_again_after_the_time_it_names(keyed: Server, ask: Any, errors: Any) -> None:
    statuses = []
    with keyed.http(headers={"authorization": "Bearer one"}) as http:
        body = {"model": "scripted", **ENDLESS, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as held:
            lines = held.iter_lines()
            next(lines)
            with pytest.raises(errors.RateLimitError) as refused:
                ask(keyed, "one")
            assert refused.value.response.headers["retry-after"] == "1"

            def note(response: Any) -> None:
                """The slot is given back once the client has seen its refusal."""
                statuses.append(response.status_code)
                held.close()

            hooked = errors.DefaultHttpxClient(event_hooks={"response": [note]})
            assert ask(keyed, "one", options={"max_retries": 3, "http_client": hooked}).usage
    assert statuses[0] == 429
    assert statuses[-1] == 200
