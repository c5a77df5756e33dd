"""Located findings about a spec, and three ways to print them: text with a caret, JSON, GitHub annotations."""

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One finding. Lines and columns count from 1, columns in characters."""

    rule: str  # "type/integer", "scheduler/async-exclusive"
    message: str
    severity: Severity = Severity.ERROR
    path: str = ""  # of the spec: "cache.block_size"; "" is the document
    file: str = ""
    line: int = 1
    column: int = 1
    value: Any = None  # as written; secrets arrive masked
    allowed: str = ""
    hint: str = ""
    source_line: str | None = field(default=None, compare=False)  # what the caret points into

    def to_dict(self) -> dict[str, Any]:
        """What the JSON form holds; every key is always there."""
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "message": self.message,
            "path": self.path,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "value": self.value,
            "allowed": self.allowed,
            "hint": self.hint,
        }


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    return any(found.severity is Severity.ERROR for found in diagnostics)


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sorts by file, then by place, then by rule."""
    return sorted(diagnostics, key=lambda found: (found.file, found.line, found.column, found.rule, found.path))


def render_text(diagnostics: Sequence[Diagnostic]) -> str:
    return "\n".join(_text(found) for found in diagnostics)


def render_json(diagnostics: Sequence[Diagnostic]) -> str:
    """`{"diagnostics": [...], "errors": n, "warnings": n}`."""
    errors = sum(found.severity is Severity.ERROR for found in diagnostics)
    body = {
        "diagnostics": [found.to_dict() for found in diagnostics],
        "errors": errors,
        "warnings": len(diagnostics) - errors,
    }
    return json.dumps(body, indent=2, ensure_ascii=False, default=str)


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """Workflow commands that GitHub shows beside the line of the diff."""
    return "\n".join(_github(found) for found in diagnostics)


RENDERERS = {"text": render_text, "json": render_json, "github": render_github}


def _text(found: Diagnostic) -> str:
    place = f"{found.file or '<spec>'}:{found.line}:{found.column}"
    lines = [f"{place}: {found.severity}: {found.message} [{found.rule}]"]
    lines += _caret(found)
    if found.allowed:
        lines.append(f"    allowed: {found.allowed}")
    if found.hint:
        lines.append(f"    hint: {found.hint}")
    return "\n".join(lines)


def _caret(found: Diagnostic) -> list[str]:
    """The source line and a caret; a long line is cut so that the caret stays in sight."""
    if not found.source_line:
        return []
    width, before = 100, 60
    start = max(0, found.column - 1 - before) if len(found.source_line) > width else 0
    shown = _printable(found.source_line[start : start + width])
    gutter = f"{found.line:>5} | "
    pointer = " " * (found.column - 1 - start)
    return [gutter + shown, " " * 5 + " | " + pointer + "^"]


def _printable(text: str) -> str:
    """Same length, with control characters replaced, so that a file cannot drive the terminal."""
    return "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in text)


def _github(found: Diagnostic) -> str:
    properties = {
        "file": found.file,
        "line": str(found.line),
        "col": str(found.column),
        "title": found.rule,
    }
    joined = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    parts = [found.message, f"allowed: {found.allowed}" if found.allowed else "", f"hint: {found.hint}"]
    message = "\n".join(part for part in parts if part and part != "hint: ")
    return f"::{found.severity} {joined}::{_escaped(message)}"


def _escaped(text: str, also: str = "") -> str:
    """Percent escapes of workflow commands: `%`, line ends, and in properties also `:` and `,`."""
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
