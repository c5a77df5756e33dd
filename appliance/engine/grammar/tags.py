"""Writes structural tags (free text in which tagged parts follow schemas) as a Lark grammar."""

from typing import Any

import msgspec

from appliance.engine.grammar.inline import InlineSchemas
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.literals import quoted


class Tag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part that starts with `begin`, follows `schema`, and stops with `end`."""

    begin: str
    schema: dict[str, Any] | bool
    end: str


class TagRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After a trigger, only a tag whose `begin` starts with that trigger may follow.

    at_least_one: the text cannot end before a tag. stop_after_first: it ends with the first tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


def tags_as_lark(rules: TagRules, schemas: InlineSchemas) -> str:
    """Returns the Lark grammar. Raises GrammarError with the path of a trigger or tag that cannot be used."""
    _check(rules)
    lines: list[str] = []
    names: list[str] = []
    for number, trigger in enumerate(rules.triggers):
        bodies = [tag for tag in rules.tags if _trigger_of(tag, rules.triggers) == trigger]
        if not bodies:
            continue
        names.append(f"tag_{number}")
        alternatives = [f"tag_{number}_{place}" for place in range(len(bodies))]
        lines.append(f"tag_{number}: trigger_{number} ({' | '.join(alternatives)})")
        lines.append(f"trigger_{number}[lazy]: TEXT {quoted(trigger)}")
        for name, tag in zip(alternatives, bodies, strict=True):
            lines.append(f"{name}: {quoted(tag.begin[len(trigger) :])} {schemas.rule(tag.schema)} {quoted(tag.end)}")
    some = f"({' | '.join(names)})"
    match rules.stop_after_first, rules.at_least_one:
        case True, True:
            start = some
        case True, False:
            start = f"{some} | TEXT"
        case _, at_least_one:
            start = f"{some}{'+' if at_least_one else '*'} TEXT"
    return "\n".join([f"start: {start}", r"TEXT: /(.|\n)*/", *lines, ""])


def _check(rules: TagRules) -> None:
    if not rules.triggers or not all(rules.triggers):
        raise GrammarError("at least one trigger is needed, and none may be empty", ".triggers")
    if not rules.tags:
        raise GrammarError("at least one tag is needed", ".tags")
    for place, tag in enumerate(rules.tags):
        if _trigger_of(tag, rules.triggers) is None:
            raise GrammarError(f"begin {tag.begin[:60]!r} starts with none of the triggers", f".tags[{place}].begin")


def _trigger_of(tag: Tag, triggers: list[str]) -> str | None:
    return next((trigger for trigger in triggers if tag.begin.startswith(trigger)), None)
