"""Writes a request as a curl command line."""

import shlex
from typing import Any

import msgspec

from appliance.deploy.probe import UNIX
from appliance.plan.types import PoolingPlan

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


def example_of_pooling(pooling: PoolingPlan) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a first request to a model that pools."""
    text = "Once upon a time"
    if pooling.kind == "all":
        return "/pooling", {"input": text}
    match pooling.task:
        case "embed":
            return "/v1/embeddings", {"input": text}
        case "classify":
            return "/classify", {"input": text}
        case "score":
            return "/score", {"text_1": text, "text_2": "The end"}


def curl_line(url: str, path: str, body: dict[str, Any], *, needs_key: bool) -> str:
    """Returns the command line. url: the server's root, or unix:/path. The API key itself is never printed."""
    if url.startswith(UNIX):
        url = f"--unix-socket {shlex.quote(url.removeprefix(UNIX))} http://localhost"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {url}{path} -H 'Content-Type: application/json'{key} -d {data}"
