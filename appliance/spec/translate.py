"""Translates pydantic's errors to located diagnostics in the words of the spec."""

from collections.abc import Iterable
from typing import Any

from pydantic_core import ErrorDetails

from appliance.base.diagnostics import Diagnostic
from appliance.spec.document import Document
from appliance.spec.paths import ABSENT, Path, child, format_path
from appliance.spec.suggest import unknown_key_hint
from appliance.spec.tree import Field, find, section_at
from appliance.spec.value_hints import item_words, value_hint

MASK = "***"
MAX_DIAGNOSTICS = 200  # more are not useful, and hints take time

_RULES = {
    "missing": "spec/missing",
    "extra_forbidden": "spec/unknown-key",
    "literal_error": "value/choice",
    "value_error": "value/format",
    "string_pattern_mismatch": "value/format",
    "string_too_short": "value/format",
    "greater_than": "value/range",
    "greater_than_equal": "value/range",
    "less_than": "value/range",
    "less_than_equal": "value/range",
}


def translate(errors: Iterable[ErrorDetails], document: Document) -> list[Diagnostic]:
    """Returns one diagnostic per path; for a union, that of the most informative branch."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(document_path(error, document.data), []).append(error)
    known = {found.path for found in document.diagnostics}
    paths = [path for path in by_path if format_path(path) not in known]
    found = [_diagnostic(path, _telling(by_path[path]), document) for path in paths[:MAX_DIAGNOSTICS]]
    return found + too_many(len(paths) - MAX_DIAGNOSTICS)


def too_many(count: int) -> list[Diagnostic]:
    """Returns one finding in place of `count` others; none if `count` is 0."""
    if count <= 0:
        return []
    message = f"{count} more errors are not shown"
    return [Diagnostic(rule="spec/too-many", message=message, hint="is it a deployment? mend the first ones")]


def document_path(error: ErrorDetails, data: Any) -> Path:
    """Returns the error's location without the names of union branches."""
    path: list[str | int] = []
    current = data
    for part in error["loc"]:
        inner = child(current, part)
        if inner is not ABSENT:
            current = inner
        elif error["type"] != "missing" or part != error["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _telling(group: list[ErrorDetails]) -> ErrorDetails:
    """Returns the most informative error: of value, else of choice, else of type, and last that it is not `auto`."""
    order = {"value_error": 0, "greater_than_equal": 0, "greater_than": 0, "less_than_equal": 0, "literal_error": 1}
    return min(group, key=lambda error: 3 if _is_only_auto(error) else order.get(error["type"], 2))


def _is_only_auto(error: ErrorDetails) -> bool:
    return error["type"] == "literal_error" and error.get("ctx", {}).get("expected") == "'auto'"


def _diagnostic(path: Path, error: ErrorDetails, document: Document) -> Diagnostic:
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    if kind == "missing":
        return _missing(path, document)
    text = format_path(path)
    found = find(path)
    value = _input(error)
    if kind == "model_type" or value is None:
        return _not_a_section(path, value, document)
    position = document.key_place(text) if "[key]" in error["loc"] else document.place(text)
    shown = MASK if text in document.interpolated or (found and found.doc.secret) else value
    allowed = item_words(found, isinstance(path[-1], int)) if found else ""
    reason = str(error.get("ctx", {}).get("error", "")) if kind == "value_error" else ""
    message = f"{text} cannot be {_shown(shown)}"
    if reason and shown is not MASK:
        message += f": {reason}" if reason not in allowed else ""
    return Diagnostic(
        rule=_RULES.get(kind, "value/type"),
        message=message,
        path=text,
        line=position.line,
        column=position.column,
        value=shown,
        allowed=allowed or error["msg"].lower(),
        hint=value_hint(found, value, kind, allowed) if found and shown is not MASK else "see `appliance explain`",
    )


def _unknown_key(path: Path, document: Document) -> Diagnostic:
    text = format_path(path)
    position = document.key_place(text)
    section = section_at(path[:-1])
    name = str(path[-1])
    hint = unknown_key_hint(name, section, path[:-1]) if section else ""
    where = format_path(path[:-1])
    message = f"{where} has no key {name!r}" if where else f"{name!r} is no key of a deployment"
    return Diagnostic(
        rule="spec/unknown-key", message=message, path=text, line=position.line, column=position.column, hint=hint
    )


def _missing(path: Path, document: Document) -> Diagnostic:
    text = format_path(path)
    position = document.key_place(format_path(path[:-1]))
    found = find(path)
    return Diagnostic(
        rule="spec/missing",
        message=f"{text} is required",
        path=text,
        line=position.line,
        column=position.column,
        allowed=found.allowed if found else "",
        hint=_MISSING_HINTS.get(text, found.doc.doc if found else ""),
    )


_MISSING_HINTS = {
    "api_version": "begin the file with: api_version: appliance/v1",
    "kind": "write: kind: Deployment",
    "model": "write: model: {source: hf://owner/name}",
}


def _not_a_section(path: Path, value: Any, document: Document) -> Diagnostic:
    """Makes the diagnostic of a section, list or value that is empty or has the wrong shape."""
    text = format_path(path)
    position = document.place(text)
    section = section_at(path)
    found = find(path)
    if section is not None:
        allowed = f"a mapping with the keys {', '.join(section.model_fields)}"
    else:
        allowed = item_words(found, isinstance(path[-1], int)) if found else ""
    message = f"{text} is empty" if value is None else f"{text} cannot be {_shown(value)}"
    return Diagnostic(
        rule="value/null" if value is None else "value/type",
        message=message,
        path=text,
        line=position.line,
        column=position.column,
        value=value,
        allowed=allowed,
        hint=_shape_hint(section is not None, found, value, allowed),
    )


def _shape_hint(is_section: bool, found: Field | None, value: Any, allowed: str) -> str:
    if is_section and value is not None:
        return "write its keys below it, indented"
    return value_hint(found, value, "", allowed) if found else "give it a value, or remove the key"


def _input(error: ErrorDetails) -> Any:
    value = error["input"]
    return f"a mapping of {len(value)} keys" if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return value if value.startswith("a mapping of") else repr(value[:80])
    return {True: "true", False: "false", None: "null"}.get(value, repr(value)) if _is_word(value) else repr(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
