"""HEAD, methods that a path has not, and paths that were nearly right."""

import httpx
import pytest

from appliance.server.http.misses import Misses
from appliance.server.http.routes import ROUTES, Route
from tests.server.harness import example_path
from tests.server.test_bad_requests import OFF, is_error

GETS = [route for route in ROUTES if "GET" in route.methods and route.path not in OFF]


@pytest.mark.parametrize("route", GETS, ids=lambda route: route.path)
def test_head_is_served_where_get_is(http: httpx.Client, route: Route) -> None:
    path = example_path(route)
    asked, got = http.head(path), http.get(path)
    assert asked.content == b""
    assert asked.status_code == got.status_code
    assert asked.headers.get("content-type") == got.headers.get("content-type")


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", "/v1/chat/completions", "POST"),
    ("HEAD", "/v1/chat/completions", "POST"),
    ("PUT", "/v1/files", "GET, HEAD, POST"),
    ("POST", "/v1/files/x", "DELETE, GET, HEAD"),
    ("DELETE", "/health", "GET, HEAD"),
    ("OPTIONS", "/ping", "GET, HEAD, POST"),
    ("GET", "/v1/responses/x/cancel", "POST"),
])  # fmt: skip
def test_a_wrong_method_is_told_the_others(http: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert is_error(answer, 405)["code"] == "method_not_allowed"


@pytest.mark.parametrize(("path", "meant"), [
    ("/v1/chat/completions/", "/v1/chat/completions"),
    ("/chat/completions", "/v1/chat/completions"),
    ("/completions", "/v1/completions"),
    ("//v1/chat/completions", "/v1/chat/completions"),
    ("/v1//chat/completions", "/v1/chat/completions"),
    ("/v1/v1/chat/completions", "/v1/chat/completions"),
    ("/v1/v1/messages", "/v1/messages"),
    ("/messages", "/v1/messages"),
    ("/v1/tokenize", "/tokenize"),
    ("/v1/health/", "/health"),
    ("/api/v1/chat/completions", "/v1/chat/completions"),
    ("/openai/deployments/gpt/chat/completions", "/v1/chat/completions"),
    ("/v1/chat/completion", "/v1/chat/completions"),
    ("/v1/chat/competions", "/v1/chat/completions"),
    ("/v1/responses/resp_1/", "/v1/responses/resp_1"),
])  # fmt: skip
def test_a_path_that_is_nearly_right_is_told_the_right_one(http: httpx.Client, path: str, meant: str) -> None:
    error = (
        is_error(http.post(path, json={}), 404) if "messages" not in meant else http.post(path, json={}).json()["error"]
    )
    assert f"the path is {meant} " in error["message"]


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/x" * 50_000, "/" * 1000, "/v1" * 500, "/%00", "/\u00e9", "/nothing"]
)
def test_other_paths_are_told_nothing(path: str) -> None:
    misses = Misses([route for route in ROUTES if route.path != "/"])
    assert misses.meant(path) is None
