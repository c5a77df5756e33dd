"""Checks a document into a spec: first types, then cross-field rules, even if some values have wrong types."""

import copy
from typing import Any

from pydantic_core import ErrorDetails

from appliance.base.diagnostics import Diagnostic
from appliance.spec.deployment import API_VERSION, DeploymentSpec
from appliance.spec.document import Document
from appliance.spec.paths import Path, format_path, value_at
from appliance.spec.rules import check_rules
from appliance.spec.shape import check_shape
from appliance.spec.translate import MAX_DIAGNOSTICS, document_path, translate
from appliance.spec.validate import validate

_STAND_INS: dict[Path, Any] = {
    ("api_version",): API_VERSION,
    ("kind",): "Deployment",
    ("name",): "unnamed",
    ("model",): {"source": "unknown"},
    ("model", "source"): "unknown",
}


def check(document: Document) -> tuple[DeploymentSpec | None, list[Diagnostic]]:
    """Returns the spec (None if a type is wrong) and all diagnostics. Removes `x-` keys from the document's data."""
    if (wrong := check_shape(document)) is not None:
        return None, [wrong]
    spec, errors = validate(document.data)
    if spec is None:
        return None, translate(errors, document) + _rules_on_the_rest(errors, document)
    return spec, check_rules(spec)


def _rules_on_the_rest(errors: list[ErrorDetails], document: Document) -> list[Diagnostic]:
    """Runs the rules that read no wrong value, on a copy without the wrong values."""
    if len(errors) > MAX_DIAGNOSTICS:
        return []
    data = copy.deepcopy(document.data)
    guessed: set[str] = {found.path for found in document.diagnostics}
    for each in errors:
        path = _outside_lists(document_path(each, document.data))
        guessed.add(format_path(path))
        _prune(data, path)
    spec, _ = validate(data)
    return check_rules(spec, guessed) if spec is not None else []  # wrong types are reported already


def _outside_lists(path: Path) -> Path:
    """Returns the list field that contains `path`, so that other items keep their indices; else the path."""
    first = next((at for at, part in enumerate(path) if isinstance(part, int)), len(path))
    return path[:first]


def _prune(data: Any, path: Path) -> None:
    holder = value_at(data, path[:-1])
    if not isinstance(holder, dict):
        return
    if path in _STAND_INS:
        holder[path[-1]] = copy.copy(_STAND_INS[path])
    else:
        holder.pop(path[-1], None)
