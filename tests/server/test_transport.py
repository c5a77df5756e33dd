"""Slow, greedy and lying clients, over raw sockets. Every wait is for something the server does by itself."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until
from tests.server.wire import connect, exchange, request, statuses, until_closed

BOUNDS = {"header_timeout_s": 0.4, "body_timeout_s": 0.4, "write_timeout_s": 0.6, "max_connections": 30}
LONG = "".join(chr(ord("a") + place % 26) for place in range(300))
GET = b"GET /version HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [says("greet", "hello world"), says("long", LONG)]
    plan: dict[str, Any] = {**BOUNDS, "allowed_hosts": ["127.0.0.1", "localhost", "*.good.example"]}
    plan |= {"keep_alive_s": 1.0, "max_model_len": 4096, "num_blocks": 1024}
    script = Script(replies=replies, step_seconds=0.001)
    with running(tmp_path_factory.mktemp("strict"), script, server_load_tracking=True, **plan) as server:
        yield server


def load(server: Server) -> int:
    with server.http() as http:
        return int(http.get("/load").json()["server_load"])


def figure(server: Server, name: str) -> float:
    with server.http() as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def chat(user: str, **options: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": user}], **options}).encode()


@pytest.mark.parametrize(
    "start",
    [
        b"GET /version HTTP/1.1\r\nhost: 127",
        b"G",
        POST + b"content-length: 100\r\n\r\n{",
        POST + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["head", "first byte", "body", "chunked body"],
)
def test_a_request_that_does_not_end_is_ended(strict: Server, start: bytes) -> None:
    answer = exchange(strict, start)
    assert statuses(answer) == [408]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"


def test_dripping_bytes_buy_no_time(strict: Server) -> None:
    """Each byte comes in time; the whole does not."""
    with connect(strict) as connection:
        answer = threading.Event()

        def drip() -> None:
            for byte in b"x-a: " + b"b" * 10_000:
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return
                if answer.wait(0.02):
                    return

        connection.sendall(GET)
        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert statuses(until_closed(connection)) == [408]
        finally:
            answer.set()
            dripping.join()


def test_a_silent_connection_is_closed(strict: Server) -> None:
    assert exchange(strict, b"") == b""


def test_an_idle_connection_is_closed(strict: Server) -> None:
    assert statuses(exchange(strict, GET + b"\r\n")) == [200]


def test_a_second_slow_head_is_ended(strict: Server) -> None:
    assert statuses(exchange(strict, GET + b"\r\n" + b"GET /ver")) == [200, 408]


SMUGGLED = {
    "length and chunked": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "chunked and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 30\r\n\r\n{}" + GET + b"\r\n",
    "same length twice": POST + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}" + GET + b"\r\n",
    "length list": POST + b"content-length: 2, 2\r\n\r\n{}" + GET + b"\r\n",
    "signed length": POST + b"content-length: +2\r\n\r\n{}",
    "negative length": POST + b"content-length: -2\r\n\r\n{}",
    "hex length": POST + b"content-length: 0x2\r\n\r\n{}",
    "huge length": POST + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "chunked not last": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "folded header": GET + b"x-a: b\r\n transfer-encoding: chunked\r\n\r\n",
    "bare line feeds": GET.replace(b"\r\n", b"\n") + b"\n",
    "bare return": GET + b"x-a: b\rtransfer-encoding: chunked\r\n\r\n",
    "space before colon": POST + b"content-length : 2\r\n\r\n{}",
    "space in name": GET + b"x a: b\r\n\r\n",
    "no name": GET + b": b\r\n\r\n",
    "nul": GET + b"x-a: b\x00c\r\n\r\n",
    "bad chunk size": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk longer than said": POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "huge chunk": POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http 3": b"GET /version HTTP/3.0\r\nhost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "connect": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "no host": b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n",
    "two hosts": GET + b"host: localhost\r\nconnection: close\r\n\r\n",
    "path as host": GET.replace(b"127.0.0.1", b"x/livez?") + b"connection: close\r\n\r\n",
    "user in host": GET.replace(b"127.0.0.1", b"a@127.0.0.1") + b"connection: close\r\n\r\n",
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
def test_ambiguous_requests_are_refused_and_closed(strict: Server, data: bytes) -> None:
    """One answer, 400, then the end: nothing behind the ambiguity is ever taken for a request."""
    assert statuses(exchange(strict, data)) == [400]


def test_absolute_form_is_routed_by_its_path(strict: Server) -> None:
    data = b"GET http://127.0.0.1/version HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    assert statuses(exchange(strict, data)) == [200]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200), ("LOCALHOST", 200), ("a.good.example:80", 200), ("localhost.", 200),
        ("evil.example", 403), ("good.example", 403), ("evilgood.example", 403), ("127.0.0.1.evil.example", 403),
        ("[::1]", 403),
    ],
)  # fmt: skip
def test_only_our_own_names(strict: Server, host: str, status: int) -> None:
    with strict.http() as http:
        answer = http.get("/version", headers={"host": host})
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["code"] == "host_not_allowed"
        assert http.get("/livez", headers={"host": host}).status_code == 200  # whoever probes uses an address


def test_heads_are_bounded(strict: Server) -> None:
    assert statuses(exchange(strict, GET + b"x-a: " + b"b" * 70_000 + b"\r\n\r\n")) == [431]
    assert statuses(exchange(strict, GET + b"a: b\r\n" * 300 + b"\r\n")) == [431]
    assert statuses(exchange(strict, b"GET /" + b"a" * 70_000)) == [431]


def test_trailers_are_bounded_and_are_no_headers(strict: Server) -> None:
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n"
    assert statuses(exchange(strict, chunked + b"0\r\nx: " + b"b" * 700_000)) == [400]
    assert statuses(exchange(strict, chunked + b'd\r\n{"prompt":"x"\r\n1;' + b"e" * 700_000)) == [400]
    whole = chunked + b'e\r\n{"prompt":"x"}\r\n0\r\ncontent-type: text/x\r\nhost: evil\r\n\r\n'
    assert statuses(exchange(strict, whole)) == [200]


def test_upgrades(strict: Server) -> None:
    websocket = GET + b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n\r\n"
    assert statuses(exchange(strict, websocket)) == [426]
    body = b'{"prompt":"x"}'
    h2c = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    assert statuses(exchange(strict, GET + h2c + b"\r\n")) == [200]  # some clients always offer it
    assert statuses(exchange(strict, POST + h2c + b"content-length: 14\r\n\r\n" + body)) == [200]


def test_pipelined_requests_are_answered_in_order(strict: Server) -> None:
    answer = exchange(strict, GET + b"\r\n" + POST + b'content-length: 14\r\n\r\n{"prompt":"x"}' + GET + b"\r\n")
    assert statuses(answer) == [200, 200, 200]
    assert [b'"version"' in part for part in answer.split(b"HTTP/1.1 ")[1:]] == [True, False, True]


def test_pipelining_is_bounded(strict: Server) -> None:
    generate = request("POST", "/v1/chat/completions", chat("unknown", max_tokens=2000, ignore_eos=True))
    with connect(strict) as connection:
        connection.sendall(generate)
        wait_until(lambda: load(strict) == 1, "it is open")
        connection.sendall((GET + b"\r\n") * 100)
        assert until_closed(connection) == b""
    wait_until(lambda: load(strict) == 0, "the request ended")


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_behind_a_pipelined_request_is_seen(strict: Server, stream: bool) -> None:
    before = figure(strict, 'appliance_requests_finished_total{engine="0",finished_reason="abort"')
    with connect(strict) as connection:
        connection.sendall(
            request("POST", "/v1/chat/completions", chat("unknown", max_tokens=3000, ignore_eos=True, stream=stream))
        )
        connection.sendall(request("POST", "/tokenize", b'{"prompt": "x"}'))
        wait_until(lambda: load(strict) == 1, "it is open")
    wait_until(lambda: load(strict) == 0, "the request ended")
    name = 'appliance_requests_finished_total{engine="0",finished_reason="abort"'
    wait_until(lambda: figure(strict, name) == before + 1, "the engine's request was aborted")


def test_a_reader_that_stops_is_given_up_and_neighbours_go_on(strict: Server) -> None:
    """Nobody reads the first answer. Its request is aborted; the second one's text is what it is alone."""
    before = figure(strict, 'appliance_requests_finished_total{engine="0",finished_reason="abort"')
    body = chat("unknown", max_tokens=3000, ignore_eos=True, stream=True, logprobs=True, top_logprobs=20)
    with connect(strict, receive_buffer=4096) as connection, strict.http() as http:
        connection.sendall(request("POST", "/v1/chat/completions", body))
        wait_until(lambda: load(strict) == 1, "it is open")
        neighbour = http.post("/v1/chat/completions", content=chat("long", max_tokens=400))
        assert neighbour.json()["choices"][0]["message"]["content"] == LONG
        wait_until(lambda: load(strict) == 0, "the reader is given up", 30.0)
        name = 'appliance_requests_finished_total{engine="0",finished_reason="abort"'
        wait_until(lambda: figure(strict, name) == before + 1, "the engine's request was aborted")
        assert b"[DONE]" not in until_closed(connection)
    assert "reads too slowly" in strict.log.read_text()


def test_a_slow_reader_gets_all_the_text(strict: Server) -> None:
    body = chat("long", max_tokens=400, stream=True)
    with connect(strict, receive_buffer=2048) as connection:
        connection.sendall(request("POST", "/v1/chat/completions", body, "connection: close"))
        answer = b""
        while piece := connection.recv(512):
            answer += piece
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == LONG
    assert b"data: [DONE]" in answer


def test_connections_are_bounded(strict: Server) -> None:
    wait_until(lambda: load(strict) == 0, "idle")
    connections = [connect(strict) for _ in range(BOUNDS["max_connections"] + 5)]  # type: ignore[arg-type]  # an int
    try:
        refused = [until_closed(each) for each in connections]
        assert any(statuses(answer) == [503] for answer in refused)
    finally:
        for each in connections:
            each.close()
    with strict.http() as http:
        assert http.get("/version").status_code == 200


def test_an_answer_reaches_who_still_sends(tmp_path: Path) -> None:
    """A refusal before the body has ended is not destroyed by closing; the rest of the body is not kept."""
    with running(tmp_path, Script(), key_hashes={"a": key_hash("secret")}, **BOUNDS) as server:
        body = b"x" * (4 << 20)
        for head in (b"content-length: %d\r\n\r\n" % len(body), b"transfer-encoding: chunked\r\n\r\n400000\r\n"):
            with connect(server) as connection:
                connection.sendall(POST + head + body)
                assert statuses(until_closed(connection)) == [401]
        with server.http(headers={"x-api-key": "secret"}) as http:
            answer = http.post("/tokenize", content=b'{"prompt": "' + body + b'"}')
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        expecting = POST + b"x-api-key: secret\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: "
        with connect(server) as connection:
            connection.sendall(expecting + b"14\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
            connection.sendall(b'{"prompt":"x"}')
            assert statuses(until_closed(connection)) == [200]


def test_head_requests_have_no_body(strict: Server) -> None:
    """Two on one connection: a body would be taken for the second answer."""
    answers = exchange(strict, request("HEAD", "/livez") + request("HEAD", "/livez", b"", "connection: close"))
    heads = answers.split(b"\r\n\r\n")
    assert (len(heads), heads[-1], statuses(answers)) == (3, b"", [200, 200])
    assert b"content-length: 13" in heads[0].lower()  # what a GET would bring
