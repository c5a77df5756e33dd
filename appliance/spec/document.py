"""Converts nodes to plain data with the place of every key and value. Interpolates, merges, finds duplicate keys."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from appliance.base.diagnostics import Diagnostic
from appliance.spec.nodes import MappingNode, Node, Position, ScalarNode, SequenceNode, scalar_value
from appliance.spec.paths import Path, format_path

MERGE_KEY = "<<"


class InterpolationError(Exception):
    """A reference `${...}` cannot be filled in."""

    def __init__(self, rule: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.hint = hint


Interpolate = Callable[[str], str]  # raises InterpolationError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a document; `name` is shown to users."""

    name: str
    text: str = field(repr=False)

    def placed(self, found: Diagnostic, position: Position, *, show_line: bool = True) -> Diagnostic:
        """Returns the finding with its place in this file, and its source line unless that holds a secret."""
        lines = _lines(self.text)
        line = lines[position.line - 1] if show_line and position.line <= len(lines) else None
        return dataclasses.replace(found, file=self.name, line=position.line, column=position.column, source_line=line)


@functools.lru_cache(maxsize=4)
def _lines(text: str) -> list[str]:
    return text.splitlines()


@dataclass(slots=True)
class Document:
    """Plain data and places. `values` and `keys`: places by path, as `paths.format_path` writes it; the root is ""."""

    data: Any = None
    values: dict[str, Position] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)
    sources: dict[str, SourceFile] = field(default_factory=dict)  # of paths that an included file wrote
    interpolated: dict[str, str] = field(default_factory=dict)  # of paths whose value is from outside: the text here
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def place(self, path: str) -> Position:
        """Returns the place of the value, else of the key, else of the nearest existing parent."""
        if path in self.values:
            return self.values[path]
        if path in self.keys:
            return self.keys[path]
        if not path:
            return Position(1, 1)
        return self.key_place(parent(path))

    def source(self, path: str) -> SourceFile | None:
        """Returns the included file that contains `place`; None if it is the spec itself."""
        while path and path not in self.values and path not in self.keys:
            path = parent(path)
        return self.sources.get(path)

    def key_place(self, path: str) -> Position:
        """Returns the place of the key, else of the value, else of the nearest parent."""
        return self.keys[path] if path in self.keys else self.place(path)


def parent(path: str) -> str:
    """Returns the path of the parent: that of `a.b[0]` is `a.b`, then `a`, then the root ""."""
    cut = max(path.rfind("."), path.rfind("["))
    return path[:cut] if cut > 0 else ""


def build(root: Node, interpolate: Interpolate) -> Document:
    """Builds plain data: dicts with string keys, lists, strings, numbers, booleans and None."""
    document = Document()
    document.data = _Builder(document, interpolate).value(root, ())
    return document


class _Builder:
    def __init__(self, document: Document, interpolate: Interpolate) -> None:
        self._document = document
        self._interpolate = interpolate

    def value(self, node: Node, path: Path) -> Any:
        self._document.values[format_path(path)] = node.position
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.items)]
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own: dict[str, Position] = {}
        for key, value in node.entries:
            name = key.text
            if name == MERGE_KEY and key.plain:
                continue
            if name in own:
                message = f"{name!r} is written twice; the first is on line {own[name].line}"
                self._report("yaml/duplicate-key", message, (*path, name), key.position, "keep one of the two")
                continue
            own[name] = key.position
            self._document.keys[format_path((*path, name))] = key.position
            result[name] = self.value(value, (*path, name))
        for key, value in node.entries:
            if key.text == MERGE_KEY and key.plain:
                self._merge(result, value, path)
        return result

    def _merge(self, result: dict[str, Any], node: Node, path: Path) -> None:
        """Merges `<<: *base` and `<<: [*a, *b]`: adds keys that are not there yet, the first source first."""
        for source in node.items if isinstance(node, SequenceNode) else [node]:
            if not isinstance(source, MappingNode):
                hint = "name the anchor of a mapping: <<: *defaults"
                self._report("yaml/merge", "<< takes a mapping or a list of mappings", path, source.position, hint)
                continue
            for key, value in source.entries:
                if key.text == MERGE_KEY and key.plain:
                    self._merge(result, value, path)
                elif key.text not in result:
                    self._document.keys[format_path((*path, key.text))] = key.position
                    result[key.text] = self.value(value, (*path, key.text))

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        text = node.text
        try:
            if "${" in text:
                self._document.interpolated[format_path(path)] = text
                return self._interpolate(text)
            if node.tag is not None and node.tag.endswith(":str"):
                return text
            return scalar_value(text) if node.plain or (node.tag is not None and node.tag != "!") else text
        except InterpolationError as fault:
            self._report(fault.rule, str(fault), path, node.position, fault.hint)
        except ValueError as error:
            self._report("yaml/not-finite", str(error), path, node.position, "write a finite number")
        return None

    def _report(self, rule: str, message: str, path: Path, position: Position, hint: str = "") -> None:
        found = Diagnostic(
            rule=rule, message=message, path=format_path(path), line=position.line, column=position.column, hint=hint
        )
        self._document.diagnostics.append(found)
