"""Finds the part of a schema that a back-end refuses, when the back-end does not name it.

The deepest subschema that fails on its own is to blame, and in it the keyword without which it passes.
"""

import time
from collections.abc import Callable
from typing import Any

from appliance.engine.grammar.parts import HOMES, definition, member, path_of, steps_to, subschemas

_MOST_TRIALS = 400  # compilations spent on a better message
_MOST_SECONDS = 1.0  # time spent on it: a trial may be slow
_ANNOTATIONS = frozenset((*HOMES, "$schema", "title", "description", "$id", "$comment", "x-guidance"))

IsBad = Callable[[dict[str, Any]], bool]


def locate(schema: Any, is_bad: IsBad, clock: Callable[[], float] = time.monotonic) -> str:
    """Returns the path of the part to blame in a bad schema; "" for the whole."""
    if not isinstance(schema, dict):
        return ""
    return _Search(schema, is_bad, clock).path()


class _Search:
    def __init__(self, root: dict[str, Any], is_bad: IsBad, clock: Callable[[], float]) -> None:
        self._root = root
        self._kept = {name: root[name] for name in HOMES if name in root}  # what references in a subschema need
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
        steps = steps_to(self._root, node.get("$ref"))
        if steps is not None:
            children.append((path_of(steps), definition(self._root, node["$ref"])))
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
