"""Parses YAML text to nodes with their places, from parser events, so that depth, size and aliases are bounded.

Scalars follow the YAML 1.2 core schema: only true and false are booleans, `yes`, `on`, `1:30` and `2026-01-01` are
strings. The only tags are the core ones.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000  # after aliases are followed

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_CORE_TAGS = {_CORE + name for name in ("str", "int", "float", "bool", "null", "map", "seq")} | {"!"}

_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {"": None, "~": None}
_WORDS |= dict.fromkeys(("null", "Null", "NULL"), None)
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)


class Position(NamedTuple):
    """A place in a text. Line and column count from 1; columns are characters."""

    line: int
    column: int


class YamlReadError(Exception):
    """The text cannot be read."""

    def __init__(self, rule: str, message: str, position: Position, hint: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.position = position
        self.hint = hint


@dataclass(slots=True)
class ScalarNode:
    position: Position
    text: str
    plain: bool  # unquoted, so that its type is open
    tag: str | None


@dataclass(slots=True)
class SequenceNode:
    position: Position
    items: "list[Node]" = field(default_factory=list)


@dataclass(slots=True)
class MappingNode:
    position: Position
    entries: "list[tuple[ScalarNode, Node]]" = field(default_factory=list)


Node = ScalarNode | SequenceNode | MappingNode


def parse(text: str) -> Node | None:
    """Returns the root of the only document; None if there is none. Raises YamlReadError."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise YamlReadError(
            "yaml/too-large", f"the file is larger than {MAX_BYTES // 2**20} MiB", Position(1, 1), "is it a spec?"
        )
    try:
        return _Composer(text).compose()
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        place = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        code = error.character if isinstance(error.character, int) else ord(error.character[:1])
        message = f"the character U+{code:04X} is not allowed in YAML"
        raise YamlReadError(
            "yaml/character", message, place, "remove it, or write it as \\x.. in double quotes"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(error, text) from None


def scalar_value(text: str) -> Any:
    """Returns the value of an unquoted scalar; an integer of more than 64 bits stays text. Raises ValueError for NaN
    and infinities."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        whole = int(text, base) if len(text) < 400 else 2**64
        return whole if -(2**63) <= whole < 2**64 else text  # what a plan can carry
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    return text


class _Composer:
    """Composes nodes from events, without recursion in the parser."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=_PARSER)
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._nodes = 0

    def compose(self) -> Node | None:
        root: Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    hint = "one file describes one deployment; split the file"
                    raise YamlReadError("yaml/several-documents", "a second document starts here", _start(event), hint)
                root, _ = self._node(next(self._events), 1)
        return root

    def _node(self, event: Any, depth: int) -> tuple[Node, int]:
        """Returns a node, and how many nodes it contains with aliases followed."""
        position = _start(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), position)
        if depth > MAX_DEPTH:
            raise _too_deep(position)
        if event.tag is not None and event.tag not in _CORE_TAGS:
            hint = "remove the tag; only plain values are read"
            raise YamlReadError("yaml/tag", f"the tag {event.tag!r} is not allowed", position, hint)
        node, size = self._content(event, position, depth)
        self._spend(0 if isinstance(event, yaml.CollectionStartEvent) else 1, position)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, size)
        return node, size

    def _content(self, event: Any, position: Position, depth: int) -> tuple[Node, int]:
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(SequenceNode(position), depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(MappingNode(position), depth)
        plain = event.implicit[0]
        return ScalarNode(position, event.value, plain, event.tag), 1

    def _sequence(self, node: SequenceNode, depth: int) -> tuple[Node, int]:
        size = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item, count = self._node(event, depth + 1)
            node.items.append(item)
            size += count
        return node, size

    def _mapping(self, node: MappingNode, depth: int) -> tuple[Node, int]:
        size = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key, _ = self._node(event, depth + 1)
            if not isinstance(key, ScalarNode):
                hint = "put { } or [ ] in quotes when text is meant"
                raise YamlReadError("yaml/key", "a key must be a plain word", key.position, hint)
            value, count = self._node(next(self._events), depth + 1)
            node.entries.append((key, value))
            size += count + 1
        return node, size

    def _alias(self, anchor: str, position: Position) -> tuple[Node, int]:
        if anchor not in self._anchors:
            hint = f"write &{anchor} before the value that is meant, above this line; a value cannot hold itself"
            raise YamlReadError("yaml/alias", f"the alias *{anchor} has no finished anchor before it", position, hint)
        node, size = self._anchors[anchor]
        self._spend(size, position)
        return node, size

    def _spend(self, count: int, position: Position) -> None:
        self._nodes += count
        if self._nodes > MAX_NODES:
            hint = "aliases count each time they are used"
            raise YamlReadError("yaml/too-many", f"more than {MAX_NODES} values", position, hint)


def _start(event: Any) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def _too_deep(position: Position) -> YamlReadError:
    hint = "a deployment needs five levels"
    return YamlReadError("yaml/too-deep", f"nested deeper than {MAX_DEPTH} levels", position, hint)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> YamlReadError:
    """Places the error at the problem; if the text ends too early, at the construct that was left open."""
    problem = error.problem or "it cannot be read"
    ends = "end of stream" in problem or "<stream end>" in problem
    mark = (error.context_mark if ends else None) or error.problem_mark or error.context_mark
    position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
    if "maximum nesting depth" in problem:  # libyaml 0.2.6 reads ahead and stops by itself at 1,000 open brackets
        return _too_deep(position)
    lines = text.splitlines()
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    hint = _syntax_hint(error, line)
    return YamlReadError("yaml/syntax", f"the text is not YAML: {problem}", position, hint)


def _syntax_hint(error: yaml.MarkedYAMLError, line: str) -> str:
    opened = error.context_mark
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces: YAML forbids tabs"
    if "${" in line and "}" in line:
        return "put values with ${...} in quotes inside { } and [ ]"
    if opened is not None and "flow" in (error.context or ""):
        return f"the bracket of line {opened.line + 1}, column {opened.column + 1} may not be closed"
    if opened is not None and "quoted scalar" in (error.context or ""):
        return f"the quote of line {opened.line + 1}, column {opened.column + 1} is not closed"
    if "mapping values are not allowed" in (error.problem or ""):
        return "put a value that holds ': ' in quotes, and align keys of one mapping"
    return "check the indentation, and the colon and quotes of the line before"
