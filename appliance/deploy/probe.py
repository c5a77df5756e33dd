"""What a running server says about itself over HTTP."""

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

_FAILED_STATE = "failed"  # service.health.EngineState.FAILED, read from JSON
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any  # parsed JSON; None when it is not JSON


def base_url(host: str, port: int) -> str:
    """How a client on this machine reaches a server bound to `host`."""
    reachable = _ANY_ADDRESS.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def ask(url: str, path: str, timeout_s: float = 2.0) -> Answer | None:
    """A GET; None when nobody answers in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    try:
        return Answer(response.status, msgspec.json.decode(data))
    except msgspec.DecodeError:
        return Answer(response.status, None)


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """`is_failed`: it will not be ready again by itself."""

    is_ready: bool
    is_failed: bool = False
    reason: str = ""


def ask_ready(url: str, timeout_s: float = 2.0) -> ReadyAnswer:
    """Whether the server takes requests, and why not."""
    answer = ask(url, "/readyz", timeout_s)
    if answer is None:
        return ReadyAnswer(False, reason="it does not answer")
    if answer.status == 200:
        return ReadyAnswer(True)
    body = answer.body if isinstance(answer.body, dict) else {}
    reasons = "; ".join(map(str, body.get("reasons") or ()))
    is_failed = body.get("state") == _FAILED_STATE
    return ReadyAnswer(False, is_failed, reasons or f"/readyz answers {answer.status}")
