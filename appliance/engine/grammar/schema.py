"""What of JSON Schema a constraint may use: checked before anything is compiled, refused with the place.

The dialect is 2020-12. Keywords that say nothing about an answer (title, default, examples ...) and unknown ones are
passed over, as the standard has it; keywords that would change the answer and that the back-end does not enforce are
refused. What remains is left to the back-end, which refuses what it cannot intersect or prove.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from appliance.engine.grammar.closing import closable
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.locate import definition, member, subschemas

MAX_DEPTH = 64  # of nested values
MAX_VALUES = 20_000  # of a schema document: members, items, and what they hold

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # that the back-end enforces
_UNENFORCED = frozenset(
    (
        "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties",
        "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "if", "not", "$dynamicRef",
        "$recursiveRef",
    )
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"uniqueItems": (False,), "nullable": (False,)}
_BOUNDED_FORMATS = re.compile(r"u?int(8|16|32|64)")
# What the back-end's grammars of formats leave open: year 0, 29 February, leap seconds, and the length of names.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-(0[13-9]|1[0-2])-[0-9]{{2}}|{_YEAR}-02-([01][0-9]|2[0-8])|{_LEAP_YEAR}-02-29)"
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][0-9]"
_TIGHTER: Mapping[str, tuple[str, Any]] = {
    "date": ("pattern", f"^{_DATE}$"),
    "time": ("pattern", f"^{_TIME}"),
    "date-time": ("pattern", f"^{_DATE}[Tt]{_TIME}"),
    "hostname": ("maxLength", 253),
}
_EXTERNAL = re.compile(r"[^#]")


def checked_schema(schema: Any, *, additional_properties: bool = True) -> dict[str, Any] | bool:
    """The schema, ready for the back-end: without neutral keywords and, where `additional_properties` is false, with
    objects closed that do not say otherwise (see closing). Raises GrammarError with the path of what is refused."""
    _check_size(schema)
    closed = frozenset() if additional_properties else closable(schema)
    _Checker(schema, closed).check(schema, "")
    ready = _rewritten(schema, closed)
    assert isinstance(ready, dict | bool)
    return ready


def _check_size(schema: Any) -> None:
    """Counts without recursion, so that no depth can hurt."""
    level, count, depth = [schema], 1, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema is nested more than {MAX_DEPTH} deep")
        below: list[Any] = []
        for value in level:
            below.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        count += len(below)
        if count > MAX_VALUES:
            raise GrammarError(f"the schema has more than {MAX_VALUES} values")
        level = below


class _Checker:
    def __init__(self, root: Any, closed: frozenset[int]) -> None:
        self._root = root
        self._closed = closed
        self._seen: set[int] = set()

    def check(self, schema: Any, path: str) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise GrammarError(f"a schema is an object or a boolean, not {_kind(schema)}", path)
        if id(schema) in self._seen:
            return
        self._seen.add(id(schema))
        for keyword, rule in _RULES.items():
            if keyword in schema:
                rule(schema, member(path, keyword))
        for keyword in _UNENFORCED:
            if keyword in schema and schema[keyword] not in _NEUTRAL.get(keyword, ()):
                raise GrammarError("the keyword is not enforced by the back-end", member(path, keyword))
        self._check_shapes(schema, path)
        for step, child in subschemas(schema):
            self.check(child, path + step)
        self._follow(schema, path)

    def _check_shapes(self, schema: dict[str, Any], path: str) -> None:
        for keyword, (kind, words) in _SHAPES.items():
            if keyword in schema and not isinstance(schema[keyword], kind):
                raise GrammarError(f"it must be {words}, not {_kind(schema[keyword])}", member(path, keyword))
        for keyword in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
            value = schema.get(keyword, 0)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise GrammarError("it must be an integer of at least 0", member(path, keyword))
        self._check_min_properties(schema, path)

    def _check_min_properties(self, schema: dict[str, Any], path: str) -> None:
        """The grammar does not keep additional keys apart: of two that are equal a reader sees one."""
        most = max(1, len(schema.get("required", ())) + 1)
        is_closed = schema.get("additionalProperties", id(schema) not in self._closed) is False
        if schema.get("minProperties", 0) > most and not is_closed:
            reason = "more than one free key cannot be counted, for they may be equal; name them in required"
            raise GrammarError(reason, f"{path}.minProperties")

    def _follow(self, schema: dict[str, Any], path: str) -> None:
        reference = schema.get("$ref")
        if reference is None:
            return
        where = f"{path}.$ref"
        if not isinstance(reference, str):
            raise GrammarError(f"it must be text, not {_kind(reference)}", where)
        if _EXTERNAL.match(reference):
            raise GrammarError("only references inside the schema are followed", where)
        if reference not in ("#", "") and not reference.startswith("#/"):
            raise GrammarError("anchors are not followed; write a pointer such as #/$defs/name", where)
        target = definition(self._root, reference)
        if target is None:
            raise GrammarError(f"{reference!r} points at nothing", where)
        parts = reference.removeprefix("#").strip("/")
        self.check(target, "".join(member("", part) for part in parts.split("/")) if parts else "")


def _check_format(schema: dict[str, Any], path: str) -> None:
    name, types = schema["format"], schema.get("type")
    kinds = types if isinstance(types, list) else [types]
    if not isinstance(name, str):
        raise GrammarError(f"it must be text, not {_kind(name)}", path)
    if (types is None or "string" in kinds) and name not in FORMATS:
        allowed = ", ".join(sorted(FORMATS))
        raise GrammarError(f"the format {name[:60]!r} is not enforced by the back-end; enforced are {allowed}", path)
    if ("integer" in kinds or "number" in kinds) and _BOUNDED_FORMATS.fullmatch(name):
        raise GrammarError(f"the format {name!r} is not enforced; state minimum and maximum", path)


def _check_bound(schema: dict[str, Any], path: str) -> None:
    if isinstance(schema[path.rpartition(".")[2]], bool):
        raise GrammarError("a boolean here is of draft 4; write the bound itself", path)


def _check_items(schema: dict[str, Any], path: str) -> None:
    if isinstance(schema["items"], list):
        raise GrammarError("a list here is of older drafts; write prefixItems", path)


def _check_nullable(schema: dict[str, Any], path: str) -> None:
    if schema["nullable"]:
        raise GrammarError('it is no keyword of JSON Schema; write type: [..., "null"]', path)


def _refuse_options(schema: dict[str, Any], path: str) -> None:
    raise GrammarError("options of the back-end are set by structured_outputs and by the server", path)


_RULES: dict[str, Callable[[dict[str, Any], str], None]] = {
    "format": _check_format,
    "exclusiveMinimum": _check_bound,
    "exclusiveMaximum": _check_bound,
    "items": _check_items,
    "nullable": _check_nullable,
    "x-guidance": _refuse_options,
}
_SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "properties": (dict, "an object"),
    "patternProperties": (dict, "an object"),
    "$defs": (dict, "an object"),
    "definitions": (dict, "an object"),
    "required": (list, "a list"),
    "enum": (list, "a list"),
    "anyOf": (list, "a list"),
    "oneOf": (list, "a list"),
    "allOf": (list, "a list"),
    "prefixItems": (list, "a list"),
    "pattern": (str, "text"),
    "type": ((str, list), "text or a list"),
}


def _rewritten(value: Any, closed: frozenset[int], *, literal: bool = False) -> Any:
    """A copy without neutral keywords, with formats made exact and the objects of these ids closed. Literals (enum,
    const) stay as they are."""
    if literal or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [_rewritten(each, closed) for each in value]
    copy: dict[str, Any] = {}
    for key, child in value.items():
        if key in _NEUTRAL and child in _NEUTRAL[key]:
            continue
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(child, dict):
            copy[key] = {name: _rewritten(each, closed) for name, each in child.items()}
        else:
            copy[key] = _rewritten(child, closed, literal=key in ("enum", "const", "default", "examples"))
    if isinstance(name := copy.get("format"), str) and name in _TIGHTER:
        keyword, bound = _TIGHTER[name]
        if keyword in copy:
            copy["allOf"] = [*copy.get("allOf", ()), {keyword: bound}]
        else:
            copy[keyword] = bound
    if id(value) in closed:
        copy["additionalProperties"] = False
    return copy


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
