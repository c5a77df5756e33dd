"""Writes a request as a curl command line."""

import shlex
from typing import Any

import msgspec

from appliance.deploy.probe import UNIX

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


def curl_line(url: str, path: str, body: dict[str, Any], *, needs_key: bool) -> str:
    """Returns the command line. url: the server's root, or unix:/path. The API key itself is never printed."""
    if url.startswith(UNIX):
        url = f"--unix-socket {shlex.quote(url.removeprefix(UNIX))} http://localhost"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {url}{path} -H 'Content-Type: application/json'{key} -d {data}"
