"""The parts of a JSON Schema document: paths to them, subschemas, references, and a part as a schema of its own."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

HOMES = ("$defs", "definitions")  # of definitions, which stand in no value's place
_SAFE_IN_FRAGMENTS = "!$&'()*+,;=:@/?~"  # RFC 3986, section 3.5


def member(path: str, name: str) -> str:
    """The path of an object's member: .name, or ["name"] where a dot would be misread."""
    return (
        f"{path}.{name}" if name.replace("_", "").replace("$", "").replace("-", "").isalnum() else f'{path}["{name}"]'
    )


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The subschemas of one schema object, by their path from it. Definitions are not among them: references are."""
    for keyword in ("properties", "patternProperties"):
        for name, child in _object(schema.get(keyword)).items():
            yield member(f".{keyword}", name), child
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        children = schema.get(keyword)
        for place, child in enumerate(children if isinstance(children, list) else ()):
            yield f".{keyword}[{place}]", child
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield f".{keyword}", schema[keyword]


def definition(root: Any, reference: Any) -> Any:
    """What a local pointer ("#/$defs/a") points at; None where there is nothing, or where it is no such pointer."""
    steps = steps_to(root, reference)
    return None if steps is None else _at(root, steps)


def steps_to(root: Any, reference: Any) -> list[str] | None:
    """The keys that a local pointer leads along (RFC 6901, sections 4 and 6); None where it leads to nothing.

    Percent-encoding is undone; a key that holds a percent sign as it stands is found all the same.
    """
    if not isinstance(reference, str) or not (reference.startswith("#") or not reference):
        return None
    fragment = reference[1:]
    if fragment and not fragment.startswith("/"):
        return None
    for text in dict.fromkeys((unquote(fragment), fragment)):
        steps = [_unescaped(step) for step in text.split("/")[1:]]
        if _at(root, steps) is not None:
            return steps
    return None


def pointer_to(steps: list[str]) -> str:
    """The reference that leads along these keys, encoded as a URI has it."""
    return "#" + "".join("/" + quote(_escaped(step), safe=_SAFE_IN_FRAGMENTS) for step in steps)


def path_of(steps: list[str]) -> str:
    """As `member` writes paths."""
    return "".join(f"[{step}]" if step.isdigit() else member("", step) for step in steps)


def standalone(root: Any, part: Any, prefix: str = "") -> tuple[Any, dict[str, Any], dict[str, str]]:
    """A copy of `part` that no longer needs `root`: (the copy, its definitions, their paths in `root`).

    Whatever it refers to comes along as "#/$defs/NAME", where NAME begins with `prefix`. The definitions are to be put
    at the top of the schema that takes the copy.
    """
    move = _Move(root, prefix)
    copy = move.all_from(part)
    return copy, move.definitions, move.paths


class _Move:
    def __init__(self, root: Any, prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._names: dict[int, str] = {}
        self._queue: list[tuple[str, Any]] = []
        self.definitions: dict[str, Any] = {}
        self.paths: dict[str, str] = {}

    def all_from(self, part: Any) -> Any:
        """By turns: references may lead far and in circles."""
        copy = self.copied(part)
        while self._queue:
            name, target = self._queue.pop()
            self.definitions[name] = self.copied(target)
        return copy

    def copied(self, schema: Any) -> Any:
        """Definitions stay behind. Literals are copied as they are: a "$ref" in them is no reference."""
        if not isinstance(schema, dict):
            return schema
        return {key: self._moved(key, value) for key, value in schema.items() if key not in HOMES}

    def _moved(self, key: str, value: Any) -> Any:
        if key == "$ref":
            return self._reference(value)
        if key in ("properties", "patternProperties") and isinstance(value, dict):
            return {name: self.copied(each) for name, each in value.items()}
        if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            return [self.copied(each) for each in value]
        if key in ("items", "additionalProperties"):
            return self.copied(value)
        return value

    def _reference(self, reference: Any) -> Any:
        steps = steps_to(self._root, reference)
        if steps is None:
            return reference
        target = _at(self._root, steps)
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"{self._prefix}{len(self._names)}"
            self.paths[name] = path_of(steps)
            self._queue.append((name, target))
        return f"#/$defs/{name}"


def _at(root: Any, steps: list[str]) -> Any:
    found = root
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
