"""The server's surface, from its route table: what every test of this folder walks over.

Every POST route must be classified here; `test_access` fails for one that is not, so none can be forgotten.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from appliance.server.http.routes import ROUTES, Route, error_shape

APIS = ["openai", "responses", "batches", "anthropic", "sagemaker", "inference", "demo", "debug"]
EVERYTHING: dict[str, Any] = {
    "apis": APIS, "docs": True, "offline_docs": True, "server_load_tracking": True, "tokenizer_info": True,
}  # fmt: skip
"""A plan with all routes."""


def everything(**changes: Any) -> dict[str, Any]:
    return {**EVERYTHING, **changes}


Body = dict[str, Any]


def _chat(text: str) -> Body:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}]}


def _prompt(text: str) -> Body:
    return {"model": "scripted", "prompt": text}


@dataclass(frozen=True)
class Generation:
    """A route that generates: its body for a text, and its name for the token limit."""

    body: Callable[[str], Body]
    max_tokens: str = "max_tokens"
    streams: bool = True  # server-sent events
    is_rendered: bool = True  # through the chat template
    has_sampling: bool = True  # takes the sampling fields of completions by name


GENERATION: dict[str, Generation] = {
    "/v1/chat/completions": Generation(_chat),
    "/v1/completions": Generation(_prompt, is_rendered=False),
    "/v1/responses": Generation(
        lambda text: {"model": "scripted", "input": text}, "max_output_tokens", has_sampling=False
    ),
    "/v1/messages": Generation(lambda text: {**_chat(text), "max_tokens": 20}, has_sampling=False),
    "/invocations": Generation(_chat),
    "/generate": Generation(lambda text: {"prompt": text}, is_rendered=False, has_sampling=False, streams=False),
    "/inference/v1/generate": Generation(
        lambda text: {"token_ids": [2 + byte for byte in text.encode()], "sampling_params": {}},
        is_rendered=False,
        has_sampling=False,
        streams=False,
    ),
}
READING: dict[str, Callable[[str], Body]] = {
    "/tokenize": _prompt,
    "/detokenize": lambda text: {"tokens": [2 + byte for byte in text.encode()]},
    "/v1/messages/count_tokens": _chat,
    "/v1/responses/input_tokens": lambda text: {"model": "scripted", "input": text},
    "/v1/chat/completions/render": _chat,
    "/v1/completions/render": _prompt,
    "/generative_scoring": lambda text: {
        "model": "scripted",
        "query": text,
        "items": [text],
        "label_token_ids": [5, 6],
    },
}
"""Routes that tokenize or render, and generate nothing that is shown."""

NO_JSON_BODY = {
    "/ping": "health",
    "/v1/files": "an upload of its own form",
    "/v1/batches": "its file is checked line by line",
    "/v1/batches/{batch_id}/cancel": "no body",
    "/v1/responses/{response_id}/cancel": "no body",
    "/debug/profile/start": "no body",
    "/debug/profile/stop": "no body",
    "/start_profile": "no body",
    "/collective_rpc": "calls a class that the spec names",
    "/lora-adapters": "its POST is off here; see tests/e2e/test_adapters.py",
    "/v1/load_lora_adapter": "off here; see tests/e2e/test_adapters.py",
    "/v1/unload_lora_adapter": "off here; see tests/e2e/test_adapters.py",
    "/stop_profile": "no body",
    "/sleep": "no body, and off here; see tests/e2e/test_sleep.py",
    "/update_weights_from_disk": "off here; see tests/e2e/test_weight_updates.py",
    "/wake_up": "no body, and off here; see tests/e2e/test_sleep.py",
    "/pause": "no body, and off here; see tests/server/test_pause.py",
    "/resume": "no body, and off here; see tests/server/test_pause.py",
}

NO_JSON_BODY |= dict.fromkeys(
    (
        "/v1/embeddings",
        "/v1/embed",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    ),
    "refused before its body is read, as the model of these tests generates; see tests/server/pooling",
)


def routes(method: str | None = None) -> Iterator[Route]:
    return (route for route in ROUTES if method is None or method in route.methods)


def path_of(route: Route) -> str:
    """With something in place of its parameters."""
    import re

    return re.sub(r"{\w+(:path)?}", "scripted", route.path)


def generation() -> list[str]:
    """Those of GENERATION that this version has."""
    here = {route.path for route in routes("POST")}
    return [path for path in GENERATION if path in here]


def with_body() -> dict[str, Callable[[str], Body]]:
    """Every route of this version that takes a JSON body."""
    here = {route.path for route in routes("POST")}
    known = {**{path: each.body for path, each in GENERATION.items()}, **READING}
    return {path: make for path, make in known.items() if path in here}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    body = answer.json()
    error: dict[str, Any] = body["error"]
    if error_shape(answer.request.url.path) == "anthropic":
        assert body["type"] == "error", body
        assert set(error) >= {"type", "message"}, body
    else:
        assert set(error) >= {"message", "type", "param", "code"}, body
    return error


def bytes_of(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def dumps(value: Any) -> bytes:
    """JSON with what JSON has not: NaN, infinities, lone surrogates."""
    return json.dumps(value).encode()
