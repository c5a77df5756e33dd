"""What a running server says of its graphs, from its metrics."""

import re
from typing import Any

from appliance.deploy.probe import ask_text

_SAMPLE = re.compile(r"^appliance_(graphs_captured|graphs_planned|graph_capture_seconds)\{.*\} (\S+)$", re.MULTILINE)


def graphs_status(url: str) -> dict[str, Any] | None:
    """Returns captured and planned sizes, and the seconds; None if none are planned, or no metrics are shown."""
    text = ask_text(url, "/metrics")
    return None if text is None else read_graphs(text)


def read_graphs(metrics: str) -> dict[str, Any] | None:
    """Reads the Prometheus text of a server; figures of replicas are added up."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(metrics):
        found[name] = found.get(name, 0.0) + float(value)
    if not found.get("graphs_planned"):
        return None
    return {
        "captured": int(found["graphs_captured"]),
        "planned": int(found["graphs_planned"]),
        "seconds": round(found["graph_capture_seconds"], 3),
    }
