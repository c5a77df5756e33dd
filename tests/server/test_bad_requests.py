"""Bad requests answer 4xx in OpenAI's shape and name the field, on every route that takes a body."""

from typing import Any

import httpx
import pytest

from appliance.requests.fields import UNBUILT, ChatFields, CompletionFields
from appliance.server.http.routes import ROUTES
from tests.server.harness import Server, example_path, methods_of

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}
COMPLETION = {"model": "scripted", "prompt": "Say: "}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": {"input": "greet"},
    "/v1/responses/input_tokens": {"input": "greet"},
    "/v1/chat/completions/render": CHAT,
    "/v1/completions/render": COMPLETION,
    "/generative_scoring": {"query": "x", "items": ["y"], "label_token_ids": [5]},
    "/inference/v1/generate": {"token_ids": [5]},
    "/invocations": CHAT,
    "/generate": {"prompt": "x"},
    "/v1/batches": {"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/v1/messages": {**CHAT, "max_tokens": 20},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "x"},
    "/pooling": {"input": "x"},
    "/classify": {"input": "x"},
    **{path: {"text_1": "x", "text_2": "y"} for path in ("/score", "/v1/score")},
    **{path: {"query": "x", "documents": ["y"]} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    **{path: {"texts": ["x"]} for path in ("/v1/embed", "/v2/embed")},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}
OF_ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")  # off here; see tests/e2e/test_adapters.py
OF_SLEEP = ("/sleep", "/wake_up")  # off here; see tests/e2e/test_sleep.py
OF_TRACES = ("/start_profile", "/stop_profile")  # off here; see tests/server/test_profiles.py
OF_PAUSES = ("/pause", "/resume")  # off here; see tests/server/test_pause.py
OF_WEIGHTS = ("/update_weights_from_disk",)  # off here; see tests/e2e/test_weight_updates.py
OFF = (
    "/docs",
    "/docs/offline",
    "/docs.js",
    "/openapi.json",
    "/tokenizer_info",
    "/is_sleeping",
    "/get_weight_version",
    "/is_paused",
    *OF_PAUSES,
    *OF_WEIGHTS,
    *OF_ADAPTERS,
    *OF_SLEEP,
    *OF_TRACES,
)  # until a plan turns them on
SET_SCALES = "/lora-adapters"  # its POST is off here as well, and its GET is not
OF_EXTENSIONS = ("/collective_rpc",)  # its class is off here; see tests/server/test_collective.py
OF_PROFILES = ("/debug/profile/start", "/debug/profile/stop")
WITHOUT_BODY = (
    "/v1/files",
    *OF_PROFILES,
    *OF_ADAPTERS,
    *OF_SLEEP,
    *OF_TRACES,
    *OF_PAUSES,
    *OF_WEIGHTS,
    *OF_EXTENSIONS,
    SET_SCALES,
)
# The model of these tests generates: routes for others refuse it before anything else; see tests/server/pooling.
POSTS = [
    route.path for route in ROUTES if route.methods == ("POST",) and "{" not in route.path and route.does != "pool"
]
POSTS = [path for path in POSTS if path not in WITHOUT_BODY]
GENERATING = ["/v1/chat/completions", "/v1/completions"]

WRONG_VALUES = [
    ("n", 10**9), ("n", 0), ("n", -1), ("n", 1.5), ("n", "2"), ("n", True), ("n", 10**40),
    ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", 10**12), ("max_tokens", "many"), ("max_tokens", []),
    ("temperature", -1), ("temperature", 1e9), ("temperature", "hot"), ("temperature", [1]), ("temperature", {}),
    ("top_p", 0), ("top_p", 1.1), ("top_p", -0.5), ("top_k", -2), ("top_k", 0.5), ("min_p", 2), ("min_p", -1),
    ("top_k", 1 << 31), ("top_k", 10**12), ("top_k", 10**40), ("temperature", 1e-45), ("repetition_penalty", 1e-40),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("repetition_penalty", -1),
    ("seed", "x"), ("seed", 10**30), ("stop", 5), ("stop", ["a", 5]), ("stop", [""]), ("stop", ["x"] * 1000),
    ("stop", ["x" * 100_000]), ("stop_token_ids", [-1]), ("stop_token_ids", ["x"]), ("stop_token_ids", [10**6]),
    ("min_tokens", -1), ("min_tokens", 10**6), ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", 10**6),
    ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"99999999": 1}), ("logit_bias", {"3": 1000}),
    ("logit_bias", {"3": "x"}), ("logit_bias", {str(i): 1 for i in range(2000)}),
    ("allowed_token_ids", []), ("allowed_token_ids", [10**8]), ("bad_words", [""]), ("bad_words", ["x"] * 10_000),
    ("prompt_logprobs", -2), ("prompt_logprobs", 10**6), ("priority", 3), ("priority", 10**20),
    ("stream", "yes"), ("stream_options", {"no_such": True}), ("stream_options", 3), ("model", 5),
    ("request_id", "two\nlines"), ("request_id", "x" * 1000), ("cache_salt", 7), ("best_of", 0),
    ("best_of", 1000), ("length_penalty", 2.0), ("early_stopping", True), ("early_stopping", "maybe"),
    ("use_beam_search", "yes"), ("logits_processors", ["a.b"]), ("return_token_ids", 1),
    ("logits_processors", "a.b"), ("logits_processors", [{"args": []}]),
    ("no_such_field", 1), ("", 1),
]  # fmt: skip
WRONG_CHAT = [
    ("messages", []), ("messages", "hello"), ("messages", None), ("messages", [1]),
    ("messages[0].role", [{"content": "x"}]),
    ("messages[0].role", [{"role": "wizard", "content": "x"}]),
    ("messages[0].tool_call_id", [{"role": "tool", "content": "x"}]),
    ("messages[0].content", [{"role": "user"}]), ("messages[0].content", [{"role": "user", "content": []}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].unknown", [{"role": "user", "content": "x", "unknown": 1}]),
    ("messages[0].tool_calls[0].function", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("messages[0].tool_calls", [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("messages", [{"role": "user", "content": "x" * 2000}]),
]  # fmt: skip
WRONG_PROMPTS = [
    "", [], [[]], [1, "x"], [-5], [10**12], 5, None, {"a": 1},
    [[1, -2]], "x" * 5000, list(range(2, 10)) * 200, [400_000],
]  # fmt: skip


def is_error(response: httpx.Response, status: int | tuple[int, ...] = 400) -> dict[str, Any]:
    statuses = (status,) if isinstance(status, int) else status
    assert response.status_code in statuses, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    error: dict[str, Any] = body["error"]
    if response.request.url.path.startswith("/v1/messages"):
        assert set(body) == {"type", "error"}
        assert set(error) == {"type", "message"}
    else:
        assert set(body) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert len(response.text) < 2000
    return error


def test_every_body_route_is_covered() -> None:
    every = {route.path for route in ROUTES if route.methods == ("POST",) and "{" not in route.path}
    assert every - set(WITHOUT_BODY) == set(BODIES)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(("field", "value"), WRONG_VALUES, ids=lambda value: str(value)[:30])
def test_wrong_values_name_their_field(http: httpx.Client, path: str, field: str, value: Any) -> None:
    error = is_error(http.post(path, json={**BODIES[path], field: value}))
    assert (error["param"] or "").split("[")[0].split(".")[0] == field, error


@pytest.mark.parametrize("path", [*GENERATING, "/v1/responses", "/v1/messages"])
def test_a_number_beyond_its_range_names_the_range(http: httpx.Client, path: str) -> None:
    error = is_error(http.post(path, json={**BODIES[path], "top_k": 10**12}), 400)
    assert "top_k is 1000000000000" in error["message"]
    assert "from 0 to 2147483647" in error["message"]


@pytest.mark.parametrize(("param", "messages"), WRONG_CHAT, ids=lambda value: str(value)[:40])
def test_wrong_messages(http: httpx.Client, param: str, messages: Any) -> None:
    error = is_error(http.post("/v1/chat/completions", json={**CHAT, "messages": messages}))
    assert error["param"] == param or (param == "messages" and error["param"] == "messages[0]"), error


@pytest.mark.parametrize("prompt", WRONG_PROMPTS, ids=lambda value: str(value)[:20])
def test_wrong_prompts(http: httpx.Client, prompt: Any) -> None:
    error = is_error(http.post("/v1/completions", json={**COMPLETION, "prompt": prompt}))
    assert error["param"].startswith("prompt"), error


@pytest.mark.parametrize("field", sorted(UNBUILT))
def test_what_is_not_built_is_refused_by_name(http: httpx.Client, field: str) -> None:
    value = ["something"]
    seen = 0
    for path, fields in (("/v1/chat/completions", ChatFields), ("/v1/completions", CompletionFields)):
        if field in fields.__struct_fields__:
            error = is_error(http.post(path, json={**BODIES[path], field: value}))
            assert error["param"] == field
            assert "not in this version" in error["message"]
            seen += 1
    assert seen


@pytest.mark.parametrize("path", [*GENERATING, "/v1/responses", "/inference/v1/generate"])
def test_options_of_a_stream_need_one(http: httpx.Client, path: str) -> None:
    options = {"stream_options": {"include_obfuscation": False}}
    error = is_error(http.post(path, json={**BODIES[path], **options}))
    assert error["param"] == "stream_options"
    assert http.post(path, json={**BODIES[path], **options, "stream": True}).status_code == 200


def test_prompt_beyond_the_context_says_both_numbers(http: httpx.Client) -> None:
    error = is_error(http.post("/v1/completions", json={**COMPLETION, "prompt": "x" * 600}))
    assert "600" in error["message"]
    assert "512" in error["message"]
    assert error["code"] == "context_length_exceeded"
    error = is_error(http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 511}))
    assert error["param"] == "max_tokens"
    assert "512" in error["message"]


@pytest.mark.parametrize("path", GENERATING)
def test_missing_required_field(http: httpx.Client, path: str) -> None:
    error = is_error(http.post(path, json={"model": "scripted"}))
    assert error["param"] in ("messages", "prompt")


@pytest.mark.parametrize("none", ["", [], None])
def test_no_embeddings_are_no_prompt(http: httpx.Client, none: Any) -> None:
    error = is_error(http.post("/v1/completions", json={"prompt_embeds": none}))
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize("path", [path for path in POSTS if path not in ("/generate", "/v1/batches")])
def test_unknown_model(http: httpx.Client, path: str) -> None:
    error = is_error(http.post(path, json={**BODIES[path], "model": "no-such"}), 404)
    assert "no-such" in error["message"]
    assert error.get("code") in (None, "model_not_found")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b'{"model": "\xff"}', b'{"model": NaN}',
        b'{"n": Infinity}',
        b'{"temperature": NaN}', b'{"temperature": 1e400}', b"[" * 100_000, b'{"messages":' * 50_000,
        b'{"metadata":{"a":' + b"[" * 50_000, b"\x00" * 100, b'{"prompt": "\\ud800"}', b"model=scripted",
    ],
    ids=lambda value: repr(value[:24]),
)  # fmt: skip
def test_broken_bodies(http: httpx.Client, path: str, body: bytes) -> None:
    is_error(http.post(path, content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize("path", POSTS)
def test_ten_megabytes_of_garbage(http: httpx.Client, path: str) -> None:
    is_error(http.post(path, content=b"\x81" * 10_000_000, headers={"content-type": "application/json"}), 413)


@pytest.mark.parametrize("path", POSTS)
def test_endless_body_without_a_length(server: Server, path: str) -> None:
    def pieces() -> Any:
        for _ in range(200):
            yield b"x" * 100_000

    with server.http() as http:
        try:
            response = http.post(path, content=pieces(), headers={"content-type": "application/json"})
        except (httpx.WriteError, httpx.RemoteProtocolError):
            return  # refused and closed while it was still being sent
        is_error(response, 413)


@pytest.mark.parametrize("path", POSTS)
def test_wrong_content_type(http: httpx.Client, path: str) -> None:
    is_error(http.post(path, content=b"<x/>", headers={"content-type": "text/xml"}), 415)


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/chat/completions", "/v1/completions/", "/v1/..%2f", "//v1/models"]
)
def test_unknown_paths(http: httpx.Client, path: str) -> None:
    is_error(http.get(path), 404)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path not in OFF], ids=lambda route: route.path)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"])
def test_wrong_methods(http: httpx.Client, route: Any, method: str) -> None:
    if method not in methods_of(route.path):
        is_error(http.request(method, example_path(route)), 405)


def test_broken_http(server: Server) -> None:
    import socket

    host, port = server.url.removeprefix("http://").split(":")
    for garbage, status in [
        (b"NOT HTTP AT ALL\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n", b"431"),
        (b"GET /livez HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"y" * 100_000, b"431"),
        (b"POST /tokenize HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", b"400"),
        (b"POST /tokenize HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
    ]:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(garbage)
            answer = connection.recv(4096)
            assert answer.split()[1] == status, (garbage[:60], answer)
            assert b'"error"' in answer


def test_server_is_well_afterwards(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == "hello world"
