"""What a running server says of its weights, from its metrics: whether they are still those of the plan."""

import json
import re
from typing import Any

_VERSION = re.compile(r"^appliance_weights_version(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_INFO = re.compile(
    r'^appliance_weights_info\{.*?\blabel="((?:[^"\\]|\\.)*)".*?\bsha256="(\w+)".*\} 1(?:\.0)?$', re.MULTILINE
)  # what a client calls them may have quotes, which are escaped


def read_weights(metrics: str) -> dict[str, Any] | None:
    """Returns the version, digest and label of weights that replaced those of the plan; None if none did."""
    version = max((int(float(value)) for value in _VERSION.findall(metrics)), default=0)
    if not version:
        return None
    label, sha256 = next(iter(_INFO.findall(metrics)), ("", ""))
    return {"version": version, "sha256": sha256, "label": json.loads(f'"{label}"', strict=False)}


def weights_text(status: dict[str, Any] | None) -> str | None:
    """Says which weights serve in place of the plan's; None if there is nothing to say."""
    if status is None:
        return None
    label = f" {status['label']}" if status["label"] else ""
    return f"version {status['version']}{label}, sha256:{status['sha256'][:12]}, in place of the plan's"
