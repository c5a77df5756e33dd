"""What a running server says of its graphs, from its metrics."""

import re
from typing import Any

_SAMPLE = re.compile(r"^appliance_(graphs_captured|graphs_planned|graph_capture_seconds)\{.*\} (\S+)$", re.MULTILINE)


def read_graphs(metrics: str) -> dict[str, Any] | None:
    """Returns captured and planned sizes, and the seconds; None if none are planned. Figures of replicas are
    added up."""
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
