"""Tests 11 to 19 of the list: who gets in, over every route of the table."""

import ast
import inspect
import re
import socket
from pathlib import Path

import httpx
import pytest

from appliance.server.http import gate, keys
from appliance.server.http.routes import PUBLIC_PATHS, ROUTES
from tests.security.conftest import KEYS
from tests.security.surface import GENERATION, NO_JSON_BODY, READING, path_of, routes
from tests.server.harness import Server
from tests.server.wire import exchange, statuses

PUBLIC = {"/", "/page.js", "/page.css", "/docs", "/docs.js", "/livez", "/readyz", "/health", "/ping"}


def test_every_post_route_is_classified() -> None:
    """A new route must be put into `surface`, so that every test of this folder walks over it."""
    known = {*GENERATION, *READING, *NO_JSON_BODY}
    assert {route.path for route in routes("POST")} - known == set()


def test_what_is_public_is_listed() -> None:
    assert PUBLIC_PATHS == PUBLIC


def test_11_every_route_needs_a_key(guarded: Server) -> None:
    with guarded.http() as http:
        for route in ROUTES:
            path = path_of(route)
            for method in (*route.methods, "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
                status = http.request(method, path).status_code
                assert (status == 401) == (route.auth == "key"), (method, path, status)


@pytest.mark.parametrize("change", ["{}/", "/{}", "/.{}", "/x/..{}", "/livez/..{}", "/%2e{}", "{}%00", "{};x", "{}%20"])
def test_11_no_spelling_of_a_path_gets_in(guarded: Server, change: str) -> None:
    """Sent raw, for a client would tidy the path up."""
    for route in ROUTES:
        if route.auth != "key":
            continue
        for path in (path_of(route), path_of(route).upper(), path_of(route).replace("/", "%2f")):
            line = f"GET {change.format(path)} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
            assert statuses(exchange(guarded, line.encode())) in ([401], [400]), line


@pytest.mark.parametrize(
    "head",
    [
        "host: evil/livez?", "host: x/#", "host: 127.0.0.1\r\nx-forwarded-host: x",
        "host: 127.0.0.1\r\nx-forwarded-prefix: /livez",
        "host: 127.0.0.1\r\nx-original-url: /livez", "host: 127.0.0.1\r\nx-rewrite-url: /livez",
        "host: 127.0.0.1\r\nforwarded: for=127.0.0.1;host=x", "host: 127.0.0.1\r\nx-forwarded-for: 127.0.0.1",
        "host: 127.0.0.1\r\nx-http-method-override: OPTIONS", "host: 127.0.0.1\r\norigin: null",
    ],
)  # fmt: skip
def test_12_no_header_changes_the_decision(guarded: Server, head: str) -> None:
    for route in ROUTES:
        if route.auth != "key":
            continue
        for target in (path_of(route), f"http://127.0.0.1{path_of(route)}", f"http://evil/livez/..{path_of(route)}"):
            data = f"{route.methods[0]} {target} HTTP/1.1\r\n{head}\r\nconnection: close\r\n\r\n".encode()
            assert statuses(exchange(guarded, data)) in ([401], [400]), data


def test_13_keys_are_compared_in_constant_time() -> None:
    """compare_digest and nothing else, over every key, whichever fits; rotation is in tests/server/test_keys."""
    find = ast.parse(inspect.getsource(keys.KeyRing.find).lstrip().replace("\n    ", "\n"))
    calls = {ast.unparse(node.func) for node in ast.walk(find) if isinstance(node, ast.Call)}
    assert "hmac.compare_digest" in calls
    loop = next(node for node in ast.walk(find) if isinstance(node, ast.For))
    assert not any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(loop))
    assert "compare" not in inspect.getsource(gate)


def test_14_keys_are_nowhere(guarded: Server, alice: httpx.Client) -> None:
    for route in ROUTES:
        for method in route.methods:
            answer = alice.request(method, path_of(route), params={"key": KEYS["bob"]}, content=KEYS["bob"])
            assert "secret" not in answer.text, (method, route.path)
    assert "secret" not in guarded.log.read_text()
    assert "secret" not in Path(f"/proc/{guarded.process.pid}/cmdline").read_text()
    assert "secret" not in Path(f"/proc/{guarded.process.pid}/environ").read_text()
    assert "sk-" not in "".join(str(event) for event in guarded.events())


def test_15_the_default_is_loopback() -> None:
    from appliance.spec.sections.endpoints import HttpSection

    assert HttpSection.model_fields["host"].default == "127.0.0.1"
    assert (Path(__file__).parents[1] / "spec" / "broken" / "public-without-keys.yaml").exists()


def test_16_debug_routes_are_off_and_metrics_need_a_key(guarded: Server) -> None:
    from appliance.spec.sections.endpoints import EndpointsSection

    default = EndpointsSection.model_construct().apis
    assert not {"debug", "demo", "inference"} & set(default)
    with guarded.http() as http:
        assert http.get("/metrics").status_code == 401


def test_18_no_cors_unless_listed(alice: httpx.Client) -> None:
    for route in ROUTES:
        asked = {"origin": "https://evil.example", "access-control-request-method": route.methods[0]}
        for answer in (
            alice.options(path_of(route), headers=asked),
            alice.request(route.methods[0], path_of(route), headers=asked),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")], route.path


def test_19_only_the_planned_socket_listens(guarded: Server) -> None:
    """Both processes together have one TCP socket on loopback, and Unix sockets in a private folder."""
    pids = [guarded.process.pid, guarded.engine_pid()]
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
            if found := re.fullmatch(r"socket:\[(\d+)\]", target):
                inodes.add(found[1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                listening.append(columns[1])
    port = int(guarded.url.rpartition(":")[2])
    assert listening == [f"{socket.inet_aton('127.0.0.1')[::-1].hex().upper()}:{port:04X}"]
