"""What a running server says of its replicas, from its readiness and its metrics."""

import re
from typing import Any, Final

from appliance.deploy.probe import ask

_SAMPLE: Final = re.compile(
    r'^appliance_(requests_running|requests_waiting)\{.*?\bengine="(\d+)".*?\} (\S+)$', re.MULTILINE
)


def replica_status(url: str, metrics: str) -> list[dict[str, Any]] | None:
    """Returns of each replica its number, state, reason and restarts, and its running and waiting sequences where
    metrics are shown; None if the server has one engine, or does not answer."""
    answer = ask(url, "/readyz")
    if answer is None or not isinstance(answer.body, dict) or "replicas" not in answer.body:
        return None
    replicas: list[dict[str, Any]] = answer.body["replicas"]
    return with_load(replicas, metrics)


def with_load(replicas: list[dict[str, Any]], metrics: str) -> list[dict[str, Any]]:
    """Adds `running` and `waiting` of each, as far as the Prometheus text has them."""
    found: dict[int, dict[str, int]] = {}
    for name, engine, value in _SAMPLE.findall(metrics):
        found.setdefault(int(engine), {})[name.removeprefix("requests_")] = int(float(value))
    return [each | found.get(each["engine"], {}) for each in replicas]


def replicas_text(status: list[dict[str, Any]] | None) -> str | None:
    """Says how each replica is; None where there are none."""
    return "; ".join(map(_text, status)) if status else None


def _text(replica: dict[str, Any]) -> str:
    load = f", {replica['running']} running, {replica['waiting']} waiting" if "running" in replica else ""
    restarts = f", {replica['restarts']} restarts" if replica["restarts"] else ""
    reason = f" ({replica['reason']})" if replica["reason"] else ""
    return f"engine {replica['engine']} {replica['state']}{reason}{load}{restarts}"
