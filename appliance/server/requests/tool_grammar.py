"""The constraint of a request that may be answered by a tool call or by an answer of a given form."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from appliance.engine.grammar.calls import Call, CallList, CallsOrAnswer, Parameter
from appliance.engine.grammar.parts import standalone
from appliance.engine.messages import Constraint
from appliance.plan.serving_types import StructuredPlan
from appliance.requests.errors import invalid
from appliance.requests.structured import MAX_SOURCE, JsonStyle, ready_schema
from appliance.server.requests.call_schemas import arguments_schema
from appliance.server.requests.tools import ToolWish, call_style
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.spelling import ParameterSpelling, Spelling
from appliance.text.tools.tagged_values import is_text

_WORD = re.compile(r"[\w.\-]+")  # what stands between tags, or before "=", and is read back as it was


def call_starts(wish: ToolWish, form: ToolFormat | None) -> tuple[str, ...]:
    """Returns the texts that begin a call if `calls_or_answer` is the constraint."""
    spellings = form.spellings if form is not None else ()
    return tuple(start for spelling in spellings for start in spelling.starts(wish.tools))


def calls_or_answer(answer: Constraint, wish: ToolWish, form: ToolFormat | None, plan: StructuredPlan) -> Constraint:
    """Calls as the model's format writes them, or what follows `answer`. Raises ApiError 400."""
    if form is None or not form.spellings:
        name = form.name if form is not None else "this model"
        problem = f"{answer.field} cannot be combined with tools of {name}, unless tool_choice is none or required"
        raise invalid(answer.field, problem, "unsupported_parameter")
    style = call_style(plan)
    tools = list(enumerate(wish.tools.items()))
    lists = [
        CallList(
            opening=spelling.opening,
            calls=[_call(spelling, place, name, schema, style) for place, (name, schema) in tools],
            separator=spelling.separator,
            closing=spelling.closing,
            is_parallel=wish.is_parallel,
        )
        for spelling in form.spellings
    ]
    source = msgspec.json.encode(CallsOrAnswer(lists=lists, answer=answer)).decode()
    if len(source) > MAX_SOURCE:
        problem = f"tools and {answer.field} have {len(source)} bytes together; {MAX_SOURCE} are allowed"
        raise invalid("tools", problem, "invalid_value")
    places = {".answer": answer.field} | {
        f".lists[{at}].calls[{place}].arguments": f"tools[{place}].function.parameters"
        for at in range(len(lists))
        for place in range(len(tools))
    }
    return Constraint(kind="calls", source=source, field=answer.field, whitespace=style.whitespace, places=places)


def _call(spelling: Spelling, place: int, name: str, schema: Mapping[str, Any] | None, style: JsonStyle) -> Call:
    field = f"tools[{place}].function.parameters"
    ready: Any = ready_schema(arguments_schema(schema, field), field, style)
    arguments: dict[str, Any] | bool | list[Parameter] = ready
    if spelling.parameters is not None:
        if not _WORD.fullmatch(name):
            where = f"tools[{place}].function.name"
            raise invalid(where, f"{where}: this model's calls cannot spell {name!r}", "invalid_value")
        arguments = _parameters(spelling.parameters, ready, field)
    return Call(
        begin=spelling.before + name + ("" if spelling.numbered else spelling.after),
        end=spelling.end,
        arguments=arguments,
        separator=spelling.parameters.separator if spelling.parameters is not None else "",
        numbered=spelling.numbered,
        after=spelling.after if spelling.numbered else "",
    )


def _parameters(spelling: ParameterSpelling, schema: Any, field: str) -> list[Parameter]:
    """Returns the properties of a checked schema, each with the definitions that it may refer to."""
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    unknown = [key for key in required if key not in properties]
    if unknown or any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const")):
        problem = f"{field}: this model's calls name one argument after another, so all must be in properties"
        raise invalid(field, problem, "invalid_schema")
    found: list[Parameter] = []
    for key, each in properties.items():
        if not _WORD.fullmatch(key):
            raise invalid(f"{field}.properties", f"this model's calls cannot spell {key[:60]!r}", "invalid_schema")
        is_text_alone = spelling.has_text and is_text(each)
        alone, definitions, _ = standalone(schema, each)
        found.append(
            Parameter(
                begin=spelling.before + key + spelling.middle,
                end=spelling.end,
                schema=None if is_text_alone else {**alone, "$defs": definitions} if definitions else alone,
                choices=_texts(each) if is_text_alone else [],
                is_required=key in required,
            )
        )
    return found


def _texts(schema: Any) -> list[str]:
    """The texts that a schema of texts lists; empty for any."""
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [text for text in listed if isinstance(text, str)]
