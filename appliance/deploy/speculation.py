"""What a running server says of its drafts, from its metrics."""

import re
from typing import Any

_SAMPLE = re.compile(r'^appliance_(\w+?)_total\{.*?\b(?:method|decision)="(\w+)".*\} (\S+)$', re.MULTILINE)
_OF_METHOD = {
    "method_drafts": "drafts",
    "method_draft_tokens": "tokens",
    "method_draft_tokens_accepted": "accepted",
}


def read_speculation(metrics: str) -> dict[str, Any] | None:
    """Returns drafts by method and steps by decision; None if the server has no speculation. Counts of
    replicas are added up."""
    methods: dict[str, dict[str, int]] = {}
    steps: dict[str, int] = {}
    for name, label, value in _SAMPLE.findall(metrics):
        if name == "speculation_steps":
            steps[label] = steps.get(label, 0) + int(float(value))
        elif name in _OF_METHOD:
            methods.setdefault(label, dict.fromkeys(_OF_METHOD.values(), 0))[_OF_METHOD[name]] += int(float(value))
    return {"methods": methods, "steps": steps} if steps else None
