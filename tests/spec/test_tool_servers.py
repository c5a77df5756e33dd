"""The forms of `decoding.tool_server`, and that a secret of one is in no plan."""

import pytest

from appliance.base.errors import SpecError
from appliance.spec.loader import load_text

HEAD = "api_version: appliance/v1\nkind: Deployment\nname: x\nmodel: {source: ./m}\n"


def test_host_and_port_are_short_for_a_url() -> None:
    [server] = load_text(HEAD + "decoding: {tool_server: ['tools:8000']}\n", "x").spec.decoding.tool_server
    assert (server.name, server.url, server.command) == ("tools:8000", "http://tools:8000/mcp", None)


def test_a_secret_is_known_as_it_was_written() -> None:
    text = HEAD + "decoding: {tool_server: [{name: s, command: [a], env: {T: 'x ${env:TOKEN}'}}]}\n"
    loaded = load_text(text, "x", environ={"TOKEN": "abc"})
    assert loaded.spec.decoding.tool_server[0].env == {"T": "x abc"}
    assert loaded.unfilled("decoding.tool_server[0].env.T", "x abc") == "x ${env:TOKEN}"


@pytest.mark.parametrize(
    ("servers", "problem"),
    [
        ("[demo]", "demo are not here"), ("[{name: s}]", "a command that is started here, or a url"),
        ("[{name: s, command: [a], headers: {A: b}}]", "a command has no headers"),
        ("[{name: s, command: [a]}, {name: s, command: [b]}]", "two tool servers are named s"),
    ],
)  # fmt: skip
def test_what_is_no_server_is_refused(servers: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        load_text(HEAD + f"decoding: {{tool_server: {servers}}}\n", "x")
