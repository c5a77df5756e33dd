"""Checks the JSON Schemas within a constraint, each against the metaschema of its draft."""

from collections.abc import Iterator
from typing import Any

import msgspec

from appliance.engine.grammar.calls import CallsOrAnswer
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.metaschema import check_metaschema
from appliance.engine.grammar.tags import TagRules
from appliance.engine.messages import Constraint


def check_schemas(constraint: Constraint) -> None:
    """Checks every schema of the constraint. Raises GrammarError with the place in the source."""
    for path, schema in _schemas(constraint):
        try:
            check_metaschema(schema)
        except GrammarError as error:
            raise GrammarError(str(error), path + error.path) from error


def _schemas(constraint: Constraint) -> Iterator[tuple[str, Any]]:
    match constraint.kind:
        case "json_schema":
            yield "", msgspec.json.decode(constraint.source)
        case "tags":
            for place, tag in enumerate(msgspec.json.decode(constraint.source, type=TagRules).tags):
                yield f".tags[{place}].schema", tag.schema
        case "calls":
            rules = msgspec.json.decode(constraint.source, type=CallsOrAnswer)
            yield from _of_calls(rules)
            for path, schema in _schemas(rules.answer):
                yield f".answer{path}", schema


def _of_calls(rules: CallsOrAnswer) -> Iterator[tuple[str, Any]]:
    for at, calls in enumerate(rules.lists):
        for place, call in enumerate(calls.calls):
            path = f".lists[{at}].calls[{place}].arguments"
            if not isinstance(call.arguments, list):
                yield path, call.arguments
                continue
            for number, parameter in enumerate(call.arguments):
                if parameter.schema is not None:
                    yield f"{path}[{number}]", parameter.schema
