"""Writes schemas that lead to a place the back-end would change (see exact) as Lark rules."""

from typing import Any

from appliance.engine.grammar.exact import leading_to, places_to_keep
from appliance.engine.grammar.exact_values import has_type, is_same, literal_options, number_terminal
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.literals import BOUNDS, quoted, spelled
from appliance.engine.grammar.options import GAP, with_options
from appliance.engine.grammar.parts import definition, standalone, subschemas

_OF_NUMBERS = frozenset((*BOUNDS, "multipleOf"))
_OF_STRINGS = frozenset(("minLength", "maxLength", "pattern", "format"))
_OF_ARRAYS = frozenset(("items", "prefixItems", "minItems", "maxItems"))
_COUNTED = frozenset(("patternProperties", "minProperties", "maxProperties"))
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", *_COUNTED))
_BY_TYPE = {
    "object": _OF_OBJECTS, "array": _OF_ARRAYS, "string": _OF_STRINGS, "number": _OF_NUMBERS, "integer": _OF_NUMBERS,
}  # fmt: skip
_CHOICES = frozenset(("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
_SAYING = frozenset(("type", *_CHOICES, *_OF_STRINGS, *_OF_ARRAYS, *_OF_OBJECTS, *_OF_NUMBERS))
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_KEY = r'/"([^"\\\x00-\x1f\x7f]|\\[nrbtf\\"])*"/'  # of an additional property
_NOTHING = '""'


def exact_grammar(root: Any, options: dict[str, Any]) -> str:
    """Returns a Lark grammar of a checked schema. Raises GrammarError with the place that cannot be kept exactly."""
    return _Rules(root, options).text()


class _Rules:
    def __init__(self, root: Any, options: dict[str, Any]) -> None:
        self._root = root
        self._options = options
        whitespace = str(options.get("whitespace_pattern", GAP)) if options.get("whitespace_flexible", True) else ""
        self._gap = "gap" if whitespace else ""
        self._lines = ["gap: WS?", f"WS: /{_between_slashes(whitespace)}/"] if whitespace else []
        self._places = places_to_keep(root)
        self._on_the_way = leading_to(root, self._places)
        self._names: dict[int, str] = {}
        self._queue: list[tuple[str, dict[str, Any]]] = []

    def text(self) -> str:
        start = self._rule(self._root)
        while self._queue:  # a queue, not recursion: references may be deep and circular
            name, schema = self._queue.pop()
            self._line(name, self._body(name, schema))
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _line(self, name: str, body: str) -> str:
        self._lines.append(f"{name}: {body}")
        return name

    def _rule(self, schema: Any) -> str:
        """Returns the name of a schema's rule."""
        if not isinstance(schema, dict) or id(schema) not in self._on_the_way:
            return self._line(f"plain_{len(self._lines)}", self._json(schema))
        if id(schema) not in self._names:
            self._names[id(schema)] = f"value_{len(self._names)}"
            self._queue.append((self._names[id(schema)], schema))
        return self._names[id(schema)]

    def _json(self, schema: Any) -> str:
        copy, definitions, _ = standalone(self._root, schema)
        return "%json " + spelled(with_options({**copy, "$defs": definitions} if definitions else copy, self._options))

    def _body(self, name: str, schema: dict[str, Any]) -> str:
        said = schema.keys() & _SAYING
        choices = said & _CHOICES
        if choices and said <= {"const", "enum", "type"}:
            return self._literals(name, schema)
        if len(choices) == 1 and said == choices:
            return self._choice(schema, *choices)
        if choices:
            raise self._refusal(schema, f"all that is said beside it ({', '.join(sorted(said))})")
        return self._by_type(name, schema)

    def _refusal(self, schema: dict[str, Any], beside: str) -> GrammarError:
        return GrammarError(f"it cannot be kept to exactly together with {beside}", self._on_the_way[id(schema)])

    def _literals(self, name: str, schema: dict[str, Any]) -> str:
        listed = schema.get("enum", [schema.get("const")])
        found = [
            each for each in listed if has_type(each, schema.get("type")) and is_same(each, schema.get("const", each))
        ]
        if not found:
            raise GrammarError("no literal satisfies what is said beside it", self._on_the_way[id(schema)])
        return " | ".join(literal_options(found, self._gap, lambda body: self._line(f"LITERAL_{name.upper()}", body)))

    def _choice(self, schema: dict[str, Any], keyword: str) -> str:
        if keyword == "$ref":
            return self._rule(definition(self._root, schema["$ref"]))
        branches = schema[keyword]
        if keyword == "allOf" and len(branches) > 1:
            raise self._refusal(schema, "several schemas in allOf")
        if keyword == "oneOf" and not _are_apart(branches):
            raise self._refusal(schema, "a oneOf whose branches are not of different types")
        return " | ".join(map(self._rule, branches))

    def _by_type(self, name: str, schema: dict[str, Any]) -> str:
        given = schema.get("type", _TYPES)
        options = []
        for kind in (given,) if isinstance(given, str) else given:
            words = _BY_TYPE.get(kind, frozenset())
            part = {"type": kind} | {word: value for word, value in schema.items() if word in words}
            is_on_the_way = any(id(child) in self._on_the_way for _, child in subschemas(part))
            if kind in ("number", "integer") and id(schema) in self._places:
                options.append(self._number(name, part, schema))
            elif kind == "array" and is_on_the_way:
                options.append(self._array(name, part, schema))
            elif kind == "object" and is_on_the_way:
                options.append(self._object(name, part, schema))
            else:
                options.append(self._rule(part))
        return " | ".join(options)

    def _number(self, name: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
        try:
            return self._line(f"NUMBER_{name.upper()}", number_terminal(part["type"], part))
        except GrammarError as error:
            raise GrammarError(str(error), self._places[id(schema)]) from error

    def _array(self, name: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
        """Writes a rule for each prefix item and all after it, and one rule for the other items."""
        least, most = part.get("minItems", 0), part.get("maxItems")
        if most is not None and least > most:
            raise self._refusal(schema, "more items than there may be")
        prefix, items = part.get("prefixItems", [])[:most], part.get("items", True)
        rules = [f"{name}_item_{place}" for place in range(len(prefix) + 1)]
        for place, each in enumerate(prefix):
            end = f"{_NOTHING} | " if place >= least else ""
            comma = f'"," {self._gap}' if place else ""
            self._line(rules[place], f"{end}{comma} {self._rule(each)} {self._gap} {rules[place + 1]}")
        is_full = most is not None and most <= len(prefix)
        counts = max(least - len(prefix), 0), None if most is None else most - len(prefix)
        can_end = is_full or (items is False and counts[0] == 0)
        others = _NOTHING if can_end else _repeated(self._rule(items), self._gap, bool(prefix), *counts)
        return f'"[" {self._gap} {self._line_of_rest(rules, others)} "]"'

    def _line_of_rest(self, rules: list[str], others: str) -> str:
        self._line(rules[-1], others)
        return rules[0]

    def _object(self, name: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
        """Writes two rules for each property and all after it: as the first of the object, and after another."""
        if counted := part.keys() & _COUNTED:
            raise self._refusal(schema, " and ".join(sorted(counted)))
        rest, required = part.get("additionalProperties", True), part.get("required", [])
        properties = part.get("properties", {})
        known = {**properties, **{key: rest for key in required if key not in properties}}
        for place, (key, each) in enumerate(known.items()):
            pair = self._pair(quoted(spelled(key)), each)
            for kind, comma in (("first", ""), ("next", f'"," {self._gap}')):
                left_out = "" if key in required else f" | {name}_{kind}_{place + 1}"
                self._line(f"{name}_{kind}_{place}", f"{comma} {pair} {name}_next_{place + 1}{left_out}")
        first = following = _NOTHING
        if rest is not False:
            pair = self._pair(self._line(f"KEY_{name.upper()}", _other_key(list(known))), rest)
            following = f'("," {self._gap} {pair})*'
            first = f"({pair} {following})?"
        self._line(f"{name}_first_{len(known)}", first)
        self._line(f"{name}_next_{len(known)}", following)
        return f'"{{" {self._gap} {name}_first_0 "}}"'

    def _pair(self, key: str, schema: Any) -> str:
        return f'{key} {self._gap} ":" {self._gap} {self._rule(schema)} {self._gap}'


def _other_key(taken: list[str]) -> str:
    return f"{_KEY} & ~({' | '.join(quoted(spelled(key)) for key in taken)})" if taken else _KEY


def _repeated(rule: str, gap: str, has_before: bool, least: int, most: int | None) -> str:
    """Returns the rule for `least` to `most` values with commas between them; `most` is not 0."""
    more = f'("," {gap} {rule} {gap})'
    if has_before:
        return f"{more}{{{least},{'' if most is None else most}}}"
    rest = "" if most == 1 else f"{more}{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    return f"{rule} {gap} {rest}" if least else f"({rule} {gap} {rest})?"


def _are_apart(branches: list[Any]) -> bool:
    """Returns whether the branches' types show that no value satisfies two of them."""
    types: list[str] = []
    for branch in branches:
        given = branch.get("type") if isinstance(branch, dict) else None
        if given is None:
            return False
        types += ["number" if each == "integer" else each for each in ([given] if isinstance(given, str) else given)]
    return len(types) == len(set(types))


def _between_slashes(pattern: str) -> str:
    """Escapes a regular expression for Lark, which puts it between slashes."""
    return pattern.replace("/", r"\/").replace("\n", r"\n")
