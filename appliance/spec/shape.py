"""Prepares a document for the type check: it must be a mapping; removes `x-` keys; types interpolated texts."""

from typing import Any

from appliance.base.diagnostics import Diagnostic
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.document import Document
from appliance.spec.fields import Section
from appliance.spec.nodes import scalar_value
from appliance.spec.paths import Path, child, parse_path, value_at
from appliance.spec.tree import fields_of, find

EXTENSION_PREFIX = "x-"
_START = "a deployment begins with: api_version: appliance/v1; `appliance init` writes one"


def check_shape(document: Document) -> Diagnostic | None:
    """Removes `x-` keys from every section. Returns a diagnostic if the document is not a mapping."""
    data = document.data
    if data is None:
        return Diagnostic(rule="spec/empty", message="the file holds no deployment", hint=_START)
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        message = f"the file holds {kind}, not a mapping"
        return Diagnostic(rule="spec/not-a-mapping", message=message, allowed="keys and values", hint=_START)
    _without_extensions(data, DeploymentSpec)
    for path in sorted(document.interpolated):
        _typed(data, parse_path(path))
    return None


def _typed(data: Any, path: Path) -> None:
    """Types an interpolated text as YAML would, unless its field accepts any text (an API token may be all digits)."""
    holder, last = value_at(data, path[:-1]), path[-1]
    text = child(holder, last)
    found = find(path)
    if isinstance(text, str) and not (found is not None and found.takes_text):
        try:
            holder[last] = scalar_value(text)
        except ValueError:
            return  # nan and inf stay texts, which number fields refuse


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
