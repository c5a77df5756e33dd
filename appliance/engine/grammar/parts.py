"""The parts of a JSON Schema document: paths to them, subschemas, references, and a part as a schema of its own."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

HOMES = ("$defs", "definitions")  # hold definitions, which describe no value by themselves
_SAFE_IN_FRAGMENTS = "!$&'()*+,;=:@/?~"  # RFC 3986, section 3.5


def member(path: str, name: str) -> str:
    """Returns the path of an object's member: .name, or ["name"] where a dot would be ambiguous."""
    return (
        f"{path}.{name}" if name.replace("_", "").replace("$", "").replace("-", "").isalnum() else f'{path}["{name}"]'
    )


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the subschemas of one schema object, with their path from it. Definitions are not among them."""
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
    """Returns the target of a local pointer ("#/$defs/a"); None if it has none or is not a local pointer."""
    steps = steps_to(root, reference)
    return None if steps is None else _at(root, steps)


def steps_to(root: Any, reference: Any) -> list[str] | None:
    """Returns the keys along a local pointer (RFC 6901, sections 4 and 6); None if it has no target.

    Percent-encoding is decoded; a key that contains a literal percent sign is found too.
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
    """Returns the reference along these keys, encoded as a URI fragment."""
    return "#" + "".join("/" + quote(_escaped(step), safe=_SAFE_IN_FRAGMENTS) for step in steps)


def path_of(steps: list[str]) -> str:
    """Joins the keys into a path, as `member` writes it."""
    return "".join(f"[{step}]" if step.isdigit() else member("", step) for step in steps)


def standalone(root: Any, part: Any, prefix: str = "") -> tuple[Any, dict[str, Any], dict[str, str]]:
    """Copies `part` so that it no longer needs `root`: (the copy, its definitions, their paths in `root`).

    Its references become "#/$defs/NAME", where NAME begins with `prefix`. The caller puts the definitions at the top of
    the schema that takes the copy.
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
        """Copies a part and all it refers to, with a queue: references may be deep and circular."""
        copy = self.copied(part)
        while self._queue:
            name, target = self._queue.pop()
            self.definitions[name] = self.copied(target)
        return copy

    def copied(self, schema: Any) -> Any:
        """Copies a schema without its definitions. Literals stay as they are: a "$ref" in them is not a reference."""
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
