"""Renders a spec with every value as YAML that is itself a spec, optionally with the origin of each value."""

import json
from collections.abc import Iterator
from typing import Any

from appliance.spec.fields import Section
from appliance.spec.loader import LoadedSpec
from appliance.spec.nodes import scalar_value
from appliance.spec.paths import ABSENT, child, parse_path, value_at
from appliance.spec.tree import Field, fields_of

_COMMENT_COLUMN = 48


def render_resolved(loaded: LoadedSpec, *, explain: bool = False) -> str:
    """Renders the spec. Secrets are masked: values of secret fields, and values from `${...}`."""
    writer = _Writer(loaded, explain)
    return "".join(f"{line}\n" for line in writer.section(type(loaded.spec), "", ""))


def resolved_rows(loaded: LoadedSpec) -> list[dict[str, Any]]:
    """Returns `path`, `value` and `origin` of every field that is not a section."""
    return list(_Writer(loaded, False).rows(type(loaded.spec), ""))


class _Writer:
    def __init__(self, loaded: LoadedSpec, explain: bool) -> None:
        self._loaded = loaded
        self._data = loaded.resolved()
        self._explain = explain

    def section(self, section: type[Section], path: str, indent: str) -> Iterator[str]:
        for found in fields_of(section, path):
            value = self._value(found.path)
            if found.child is not None and value and isinstance(value, dict):
                yield f"{indent}{found.name}:"
                yield from self.section(found.child, found.path, indent + "  ")
            elif found.child is not None and value and isinstance(value, list):
                yield f"{indent}{found.name}:"
                for index in range(len(value)):
                    yield from self._item(found.child, f"{found.path}[{index}]", indent + "  ")
            elif value is not ABSENT:
                yield self._line(found, value, indent)

    def rows(self, section: type[Section], path: str) -> Iterator[dict[str, Any]]:
        for found in fields_of(section, path):
            value = self._value(found.path)
            if found.child is not None and value and isinstance(value, dict):
                yield from self.rows(found.child, found.path)
            elif found.child is not None and value and isinstance(value, list):
                for index in range(len(value)):
                    yield from self.rows(found.child, f"{found.path}[{index}]")
            elif value is not ABSENT:
                yield {"path": found.path, "value": value, "origin": self._loaded.origin(found.path)}

    def _item(self, section: type[Section], path: str, indent: str) -> Iterator[str]:
        lines = self.section(section, path, indent + "  ")
        for number, line in enumerate(lines):
            yield line if number else f"{indent}- {line.removeprefix(indent + '  ')}"

    def _value(self, path: str) -> Any:
        parts = parse_path(path)
        return child(value_at(self._data, parts[:-1]), parts[-1])

    def _line(self, found: Field, value: Any, indent: str) -> str:
        line = f"{indent}{found.name}: {_flow(found.written(value))}"
        return f"{line:<{_COMMENT_COLUMN}} # {self._loaded.origin(found.path)}" if self._explain else line


def _flow(value: Any) -> str:
    """Writes a value on one line: as JSON, which is YAML, or as a plain word without quotes."""
    is_word = isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum()
    if is_word and isinstance(scalar_value(value), str):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
