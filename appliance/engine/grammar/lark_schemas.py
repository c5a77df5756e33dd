"""Checks and rewrites the JSON Schemas within a client's Lark grammar, by the same rules as other schemas."""

import json
import re
from typing import Any, NoReturn

from appliance.engine.grammar.inline import InlineSchemas
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.schema import checked_schema

# Strings, comments and regular expressions are skipped; "%json" begins a schema.
_PARTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/(?:[^/\\\n]|\\.)+/|%json\b\s*')


def with_checked_schemas(source: str, schemas: InlineSchemas) -> str:
    """Returns the grammar with each schema rewritten by `schemas`. Raises GrammarError with the line."""
    pieces: list[str] = []
    done = 0
    while (part := _PARTS.search(source, done)) is not None:
        is_schema = part[0].startswith("%json")
        pieces.append(source[done : part.start() if is_schema else part.end()])
        done = part.end()
        if is_schema:
            schema, done = _schema(source, done)
            pieces.append(_rule(schema, schemas, source.count("\n", 0, part.start()) + 1))
    return "".join([*pieces, source[done:]])


def _schema(source: str, start: int) -> tuple[Any, int]:
    """Returns the JSON value that begins at `start`, and its end."""
    try:
        return json.JSONDecoder(parse_constant=_refuse).raw_decode(source, start)
    except RecursionError as error:
        raise GrammarError("a schema in it is nested too deeply") from error
    except ValueError as error:
        line = source.count("\n", 0, start) + 1
        raise GrammarError(f"line {line}: %json is followed by no JSON") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _rule(schema: Any, schemas: InlineSchemas, line: int) -> str:
    try:
        return schemas.rule(checked_schema(schema)) + " "
    except GrammarError as error:
        raise GrammarError(f"line {line}, the schema{error.path}: {error}") from error
