"""Which part of a schema a back-end refuses, when the back-end does not say.

The deepest subschema that fails on its own is to blame, and in it the keyword without which it passes.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

_MOST_TRIALS = 400  # compilations spent on a better message,
_MOST_SECONDS = 1.0  # and the time: a trial may be slow
_ROOT_KEPT = ("$defs", "definitions", "$schema")  # what references in a subschema need
_ANNOTATIONS = frozenset(("$schema", "$defs", "definitions", "title", "description", "$id", "$comment", "x-guidance"))

IsBad = Callable[[dict[str, Any]], bool]


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
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def locate(schema: Any, is_bad: IsBad, clock: Callable[[], float] = time.monotonic) -> str:
    """The path of what is to blame in a schema that is bad; "" for the whole."""
    if not isinstance(schema, dict):
        return ""
    return _Search(schema, is_bad, clock).path()


class _Search:
    def __init__(self, root: dict[str, Any], is_bad: IsBad, clock: Callable[[], float]) -> None:
        self._root = root
        self._kept = {name: root[name] for name in _ROOT_KEPT if name in root}
        self._is_bad = is_bad
        self._trials = _MOST_TRIALS
        self._clock = clock
        self._deadline = clock() + _MOST_SECONDS
        self._seen: set[int] = set()

    def path(self) -> str:
        path, node = "", self._root
        while (step := self._bad_child(node, path)) is not None:
            path, node = step
        return path + self._keyword(node)

    def _bad_child(self, node: dict[str, Any], path: str) -> tuple[str, dict[str, Any]] | None:
        self._seen.add(id(node))
        children = [(path + step, child) for step, child in subschemas(node)]
        target = definition(self._root, node.get("$ref"))
        if target is not None:
            reference = str(node["$ref"]).removeprefix("#").strip("/")
            children.append(("".join(member("", part) for part in reference.split("/")), target))
        for child_path, child in children:
            if isinstance(child, dict) and id(child) not in self._seen and self._may_try() and self._fails(child):
                return child_path, child
        return None

    def _keyword(self, node: dict[str, Any]) -> str:
        for name in sorted(node, key="type".__eq__):  # a type is seldom to blame alone
            rest = {key: node[key] for key in node if key != name}
            if name not in _ANNOTATIONS and self._may_try() and not self._fails(rest):
                return member("", name)
        return ""

    def _may_try(self) -> bool:
        return self._trials > 0 and self._clock() < self._deadline

    def _fails(self, schema: dict[str, Any]) -> bool:
        self._trials -= 1
        return self._is_bad({**self._kept, **schema})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
