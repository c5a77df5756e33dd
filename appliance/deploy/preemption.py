"""What a running server says of preempted sequences, from its metrics."""

import re
from typing import Any

_SAMPLE = re.compile(
    r'^appliance_(preempted_sequences|swapped_bytes|swap_seconds)_total\{.*?\b(?:outcome|way)="(\w+)".*\} (\S+)$',
    re.MULTILINE,
)


def read_swap(metrics: str) -> dict[str, Any] | None:
    """Returns outcomes of preempted sequences, and bytes and seconds of copies by way (out, in); None if the server has
    no swap space, or has preempted no sequence. Counts of replicas are added up."""
    found: dict[str, dict[str, float]] = {}
    for name, label, value in _SAMPLE.findall(metrics):
        of = found.setdefault(name, {})
        of[label] = of.get(label, 0.0) + float(value)
    return found or None


def swap_text(status: dict[str, Any] | None) -> str | None:
    """Says what became of preempted sequences, and how fast they were copied; None if there is nothing to say."""
    if status is None:
        return None
    counts = [f"{name.replace('_', ' ')} {int(count):,}" for name, count in status["preempted_sequences"].items()]
    rates = [
        f"{way} {size / status['swap_seconds'][way] / 1e9:.1f} GB/s"
        for way, size in status.get("swapped_bytes", {}).items()
        if status.get("swap_seconds", {}).get(way)
    ]
    return ", ".join([*counts, *rates])
