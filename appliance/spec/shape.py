"""Before types are checked: the document is a mapping, and `x-` keys leave it."""

from typing import Any

from appliance.base.diagnostics import Diagnostic
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.document import Document
from appliance.spec.fields import Section
from appliance.spec.tree import fields_of

EXTENSION_PREFIX = "x-"
_START = "a deployment begins with: api_version: appliance/v1; `appliance init` writes one"


def check_shape(document: Document) -> Diagnostic | None:
    """Takes `x-` keys out of every section. Returns what is wrong when the document is no mapping."""
    data = document.data
    if data is None:
        return Diagnostic(rule="spec/empty", message="the file holds no deployment", hint=_START)
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        message = f"the file holds {kind}, not a mapping"
        return Diagnostic(rule="spec/not-a-mapping", message=message, allowed="keys and values", hint=_START)
    _without_extensions(data, DeploymentSpec)
    return None


def _without_extensions(data: dict[str, Any], section: type[Section]) -> None:
    for name in [name for name in data if name.startswith(EXTENSION_PREFIX)]:
        del data[name]
    for found in fields_of(section):
        value = data.get(found.name)
        if found.child is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _without_extensions(item, found.child)
