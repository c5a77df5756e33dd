"""Tool calls in a model's own notation, or an answer that follows a constraint of its own, as a Lark grammar."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from appliance.engine.grammar.inline import InlineSchemas
from appliance.engine.messages import Constraint

_TEXT = r"/(.|\n)*/"
_NUMBER = "/[0-9]{1,3}/"
_JSON_PARTS = re.compile(r'"[^"]*"|[{:,]|\s+')


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter: begin + value + end. With `schema`, the value is JSON that follows it. If that is None, the value is
    one of `choices`, or, if there are none, any text up to `end`."""

    begin: str
    end: str
    schema: dict[str, Any] | bool | None
    choices: list[str]
    is_required: bool


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call: begin + arguments + end. numbered: after `begin` come this text, a number, and `after`.

    arguments: the schema of a JSON object, or parameters in this order, with `separator` between two.
    """

    begin: str
    end: str
    arguments: dict[str, Any] | bool | list[Parameter]
    separator: str = ""
    numbered: str = ""
    after: str = ""


class CallList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list: opening + call + separator + call ... + closing; one call if `is_parallel` is false."""

    opening: str
    calls: list[Call]
    separator: str
    closing: str
    is_parallel: bool


class CallsOrAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text is one of `lists`, or it follows `answer`."""

    lists: list[CallList]
    answer: Constraint


def calls_as_lark(rules: CallsOrAnswer, schemas: InlineSchemas, literal: Callable[[str], str]) -> str:
    """Returns a Lark grammar that calls `@answer` for the answer. `literal` gives the Lark form of a text with special
    tokens in it."""
    names = [f"list_{place}" for place in range(len(rules.lists))]
    lines = [f"start: @answer | {' | '.join(names)}"]
    for name, each in zip(names, rules.lists, strict=True):
        lines += _list(name, each, schemas, literal)
    return "\n".join([*lines, ""])


def _list(name: str, calls: CallList, schemas: InlineSchemas, literal: Callable[[str], str]) -> Iterator[str]:
    each = f"{name}_call"
    more = f" ({literal(calls.separator)} {each})*" if calls.is_parallel else ""
    yield f"{name}: {literal(calls.opening)} {each}{more} {literal(calls.closing)}"
    rules = [f"{name}_{place}" for place in range(len(calls.calls))]
    yield f"{each}: {' | '.join(rules)}"
    for rule, call in zip(rules, calls.calls, strict=True):
        begin = _begin(call.begin, literal)
        number = f"{literal(call.numbered)} {_NUMBER} {literal(call.after)}" if call.numbered else ""
        if isinstance(call.arguments, list):
            yield f"{rule}: {begin} {number} {rule}_first_0 {literal(call.end)}"
            yield from _parameters(rule, call, call.arguments, schemas, literal)
        else:
            yield f"{rule}: {begin} {number} {rule}_arguments {literal(call.end)}"
            yield f"{rule}_arguments: {schemas.rule(call.arguments)}"


def _begin(text: str, literal: Callable[[str], str]) -> str:
    """Splits a JSON beginning into JSON's tokens: the lexer could not leave a longer literal for a JSON answer."""
    return " ".join(map(literal, _JSON_PARTS.findall(text))) if text.startswith("{") else literal(text)


def _parameters(
    rule: str, call: Call, parameters: list[Parameter], schemas: InlineSchemas, literal: Callable[[str], str]
) -> Iterator[str]:
    """Yields two rules for each parameter and all after it: as the first of the call, and after another."""
    for place, parameter in enumerate(parameters):
        value = f"{rule}_value_{place}"
        if parameter.choices:
            yield f"{value}: {' | '.join(map(literal, parameter.choices))}"
            one = f"{literal(parameter.begin)} {value} {literal(parameter.end)}"
        elif parameter.schema is None:
            end = literal(parameter.end)
            lazy = "" if end.startswith("<[") else "[lazy]"  # a special token is not text, so the text ends there
            yield f"{value}{lazy}: {_TEXT} {end}"
            one = f"{literal(parameter.begin)} {value}"
        else:
            yield f"{value}: {schemas.rule(parameter.schema)}"
            one = f"{literal(parameter.begin)} {value} {literal(parameter.end)}"
        for kind, before in (("first", ""), ("next", literal(call.separator))):
            left_out = "" if parameter.is_required else f" | {rule}_{kind}_{place + 1}"
            yield f"{rule}_{kind}_{place}: {before} {one} {rule}_next_{place + 1}{left_out}"
    for kind in ("first", "next"):
        yield f'{rule}_{kind}_{len(parameters)}: ""'
