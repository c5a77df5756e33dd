"""Writes JSON schemas as grammars of their own and within Lark rules."""

from typing import Any

import msgspec

from appliance.engine.grammar.exact import places_to_keep
from appliance.engine.grammar.exact_rules import exact_grammar
from appliance.engine.grammar.options import with_options


def schema_grammar(schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns one grammar in the library's notation. options: the library's for JSON. Raises GrammarError."""
    if places_to_keep(schema):
        return {"lark_grammar": exact_grammar(schema, options)}
    return {"json_schema": with_options(schema, options)}


class InlineSchemas:
    """Schemas within the rules of one grammar. `grammars` are further grammars, which the rules call by name."""

    def __init__(self, options: dict[str, Any], prefix: str) -> None:
        """`prefix` begins the names of these grammars."""
        self.grammars: list[dict[str, Any]] = []
        self._options = options
        self._prefix = prefix

    def rule(self, schema: Any) -> str:
        """Returns the text that stands for the schema in a rule. Raises GrammarError."""
        if not places_to_keep(schema):
            return "%json " + msgspec.json.encode(with_options(schema, self._options)).decode()
        name = f"{self._prefix}{len(self.grammars)}"
        self.grammars.append({"name": name, **schema_grammar(schema, self._options)})
        return f"@{name}"
