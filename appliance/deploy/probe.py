"""What a running server says about itself over HTTP."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from appliance.base.settings import own_api_key
from appliance.plan.serving_types import ListenPlan

_FAILED_STATE = "failed"  # service.health.EngineState.FAILED, read from JSON
_WANTS_CERTIFICATE = 496  # no HTTP status: the server ended the handshake for want of a client certificate
UNIX = "unix:"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    status: int
    body: Any  # parsed JSON; None when it is not JSON


def planned_url(listen: ListenPlan) -> str:
    """How a client on this machine reaches the planned server; unix:/path for a Unix socket."""
    return _url(listen.scheme, listen.host, listen.port) if listen.uds is None else UNIX + listen.uds


def reachable(url: str) -> str:
    """The URL for a client on this machine, where the server is bound to every address."""
    if url.startswith(UNIX):
        return url
    parts = urlsplit(url)
    return _url(parts.scheme, parts.hostname or "127.0.0.1", parts.port or 80)


def _url(scheme: str, host: str, port: int) -> str:
    host = _ANY_ADDRESS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Certificates are not checked: we ask our own server on this machine whether it is ready, and tell it nothing."""
    if url.startswith(UNIX):
        return _UnixConnection(url.removeprefix(UNIX), timeout_s)
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_s)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout_s, context=context)


def ask_text(url: str, path: str, timeout_s: float = 2.0) -> str | None:
    """Sends a GET, with the key of APPLIANCE_API_KEY where there is one; None when no answer comes in time, or not
    200."""
    key = own_api_key()
    connection = _connection(url, timeout_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return data.decode(errors="replace") if response.status == 200 else None


def ask_metrics(url: str) -> str | None:
    """Returns the Prometheus text of a server, of which the readers of this package take what they know; None if it
    shows no metrics."""
    return ask_text(url, "/metrics")


def ask(url: str, path: str, timeout_s: float = 2.0) -> ProbeAnswer | None:
    """Sends a GET; None when no answer comes in time."""
    connection = _connection(url, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        data = response.read()
    except (ssl.SSLError, http.client.RemoteDisconnected):  # a handshake, then the end
        return ProbeAnswer(_WANTS_CERTIFICATE, None) if url.startswith("https:") else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    try:
        return ProbeAnswer(response.status, msgspec.json.decode(data))
    except msgspec.DecodeError:
        return ProbeAnswer(response.status, None)


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """`is_failed`: it will not be ready again by itself."""

    is_ready: bool
    is_failed: bool = False
    reason: str = ""


def ask_ready(url: str, timeout_s: float = 2.0) -> ReadyAnswer:
    """Returns whether the server takes requests, and the reason if not."""
    answer = ask(url, "/readyz", timeout_s)
    if answer is None:
        return ReadyAnswer(False, reason="it does not answer")
    if answer.status in (200, _WANTS_CERTIFICATE):  # one that lets only certified clients ask is believed
        return ReadyAnswer(True)
    body = answer.body if isinstance(answer.body, dict) else {}
    reasons = "; ".join(map(str, body.get("reasons") or ()))
    is_failed = body.get("state") == _FAILED_STATE
    return ReadyAnswer(False, is_failed, reasons or f"/readyz answers {answer.status}")
