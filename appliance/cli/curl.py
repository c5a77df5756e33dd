"""The same request, to type."""

import shlex
from typing import Any

import msgspec

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


def curl_line(url: str, path: str, body: dict[str, Any], *, needs_key: bool) -> str:
    """`url` is the server's root. The key itself is never printed."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {url}{path} -H 'Content-Type: application/json'{key} -d {data}"
