"""From request fields to a Constraint: one wish a request, checked, and refused by the name of its field."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.schema import checked_schema
from appliance.engine.grammar.tags import Tag, TagRules
from appliance.engine.messages import Constraint
from appliance.plan.serving_types import StructuredPlan
from appliance.requests.errors import ApiError, invalid, not_in_this_version
from appliance.requests.fields import GenerationFields
from appliance.requests.structured_fields import ResponseFormat, Schema, StructuralTag, StructuredOutputs

MAX_SOURCE = 256 << 10  # bytes of a schema, grammar or list of choices
MAX_REGEX = 16 << 10
MAX_CHOICES = 4096
MAX_WHITESPACE_PATTERN = 256

_BACKENDS = ("auto", "guidance")
_OTHER_BACKENDS = {
    "xgrammar": "needs torch, which serving on a CPU does without",
    "outlines": "is not built",
    "lm-format-enforcer": "is not built",
}
_OPTIONS = ("no-fallback", "disable-any-whitespace", "no-additional-properties")


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """Style of JSON where the schema does not say."""

    whitespace: str | None = None  # see Constraint
    additional_properties: bool = True


def constraint_of(fields: GenerationFields, plan: StructuredPlan) -> Constraint | None:
    """Returns the constraint that the request sets on its answer. Raises ApiError 400."""
    style = _style(fields, plan)
    wishes = list(_wishes(fields, style))
    if not wishes:
        return None
    if len(wishes) > 1:
        names = " and ".join(wish.field for wish in wishes)
        raise invalid(wishes[1].field, f"{names} cannot be given together: one constraint a request", "invalid_value")
    constraint = wishes[0]
    if plan.backend is None:
        why = "decoding.structured_output: none, or a tokenizer that is not auto"
        message = f"structured output is off on this server ({why})"
        raise invalid(constraint.field, message, "unsupported_parameter")
    if fields.use_beam_search:
        raise invalid(constraint.field, "beam search takes no constraint", "unsupported_parameter")
    return constraint


def json_constraint(schema: Schema, field: str, style: JsonStyle = JsonStyle()) -> Constraint:
    """JSON that satisfies a schema. Raises ApiError 400 naming `field` and the place in the schema."""
    return constraint_of_ready(ready_schema(schema, field, style), field, style)


def ready_schema(schema: Schema, field: str, style: JsonStyle) -> Schema:
    """The schema as the back-end gets it. Raises ApiError 400 naming `field` and the place in the schema."""
    try:
        return checked_schema(schema, additional_properties=style.additional_properties)
    except GrammarError as error:
        raise _refused(field, error) from error


def constraint_of_ready(
    ready: Schema, field: str, style: JsonStyle, places: dict[str, str] | None = None
) -> Constraint:
    """places: see Constraint. Raises ApiError 400 for a schema of too many bytes."""
    source = _bounded(msgspec.json.encode(ready).decode(), field, MAX_SOURCE)
    return Constraint(kind="json_schema", source=source, field=field, whitespace=style.whitespace, places=places or {})


def _wishes(fields: GenerationFields, style: JsonStyle) -> Iterator[Constraint]:
    if fields.response_format is not None:
        yield from _of_response_format(fields.response_format, style)
    if fields.structured_outputs is not None:
        yield from _of_structured_outputs(fields.structured_outputs, style)
    if fields.guided_json is not None:
        yield json_constraint(_schema(fields.guided_json, "guided_json"), "guided_json", style)
    if fields.guided_regex is not None:
        yield _regex(fields.guided_regex, "guided_regex")
    if fields.guided_choice is not None:
        yield _choice(fields.guided_choice, "guided_choice")
    if fields.guided_grammar is not None:
        yield _grammar(fields.guided_grammar, "guided_grammar")


def _of_response_format(wish: ResponseFormat, style: JsonStyle) -> Iterator[Constraint]:
    if wish.type == "json_object":
        yield json_constraint({"type": "object"}, "response_format", style)
    elif wish.type == "json_schema":
        if wish.json_schema is None or wish.json_schema.schema is None:
            missing = "response_format.json_schema" + ("" if wish.json_schema is None else ".schema")
            raise invalid(missing, f"the field {missing!r} is missing", "missing_required_parameter")
        yield json_constraint(wish.json_schema.schema, "response_format.json_schema.schema", style)
    elif wish.type == "structural_tag":
        tag = StructuralTag(structures=wish.structures, triggers=wish.triggers, format=wish.format)
        yield _tags(tag, "response_format", style)


def _of_structured_outputs(wish: StructuredOutputs, style: JsonStyle) -> Iterator[Constraint]:
    field = "structured_outputs"
    if wish.json is not None:
        yield json_constraint(_schema(wish.json, f"{field}.json"), f"{field}.json", style)
    if wish.json_object:
        yield json_constraint({"type": "object"}, f"{field}.json_object", style)
    if wish.regex is not None:
        yield _regex(wish.regex, f"{field}.regex")
    if wish.choice is not None:
        yield _choice(wish.choice, f"{field}.choice")
    if wish.grammar is not None:
        yield _grammar(wish.grammar, f"{field}.grammar")
    if wish.structural_tag is not None:
        tag = wish.structural_tag
        where = f"{field}.structural_tag"
        yield _tags(_decoded(tag, where, StructuralTag) if isinstance(tag, str) else tag, where, style)


def _regex(pattern: str, field: str) -> Constraint:
    return Constraint(kind="regex", source=_bounded(pattern, field, MAX_REGEX), field=field)


def _choice(choices: list[str], field: str) -> Constraint:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise invalid(field, f"{field} has {len(choices)} texts; 1 to {MAX_CHOICES} are allowed", "invalid_value")
    if "" in choices:
        raise invalid(f"{field}[{choices.index('')}]", f"{field} has an empty text", "invalid_value")
    source = _bounded(msgspec.json.encode(choices).decode(), field, MAX_SOURCE)
    return Constraint(kind="choice", source=source, field=field)


def _grammar(text: str, field: str) -> Constraint:
    """GBNF defines rules with "::=", Lark with ":"."""
    source = _bounded(text, field, MAX_SOURCE)
    return Constraint(kind="gbnf" if "::=" in source else "lark", source=source, field=field)


def _tags(tag: StructuralTag, field: str, style: JsonStyle) -> Constraint:
    if tag.format is not None:
        each = [(part.begin, part.content.json_schema, part.end) for part in tag.format.tags]
        tags_at, schemas_at = f"{field}.format.tags", ".content.json_schema"
        triggers, flags = tag.format.triggers, (tag.format.at_least_one, tag.format.stop_after_first)
    elif tag.structures is not None and tag.triggers is not None:
        each = [(part.begin, part.schema, part.end) for part in tag.structures]
        tags_at, schemas_at = f"{field}.structures", ".schema"
        triggers, flags = tag.triggers, (False, False)
    else:
        message = f"{field} needs structures and triggers, or format"
        raise invalid(field, message, "missing_required_parameter")
    tags, places = [], {}
    for place, (begin, schema, end) in enumerate(each):
        places[f".tags[{place}]"] = f"{tags_at}[{place}]"
        places[f".tags[{place}].schema"] = f"{tags_at}[{place}]{schemas_at}"
        ready = ready_schema(schema, f"{tags_at}[{place}]{schemas_at}", style)
        tags.append(Tag(begin=begin, schema=ready, end=end))
    rules = TagRules(triggers=triggers, tags=tags, at_least_one=flags[0], stop_after_first=flags[1])
    source = _bounded(msgspec.json.encode(rules).decode(), field, MAX_SOURCE)
    return Constraint(kind="tags", source=source, field=field, whitespace=style.whitespace, places=places)


def _style(fields: GenerationFields, plan: StructuredPlan) -> JsonStyle:
    newer = fields.structured_outputs or StructuredOutputs()
    options = _backend_options(fields.guided_decoding_backend)
    pattern, where = newer.whitespace_pattern, "structured_outputs.whitespace_pattern"
    if pattern is None:
        pattern, where = fields.guided_whitespace_pattern, "guided_whitespace_pattern"
    if pattern is not None:
        _bounded(pattern, where, MAX_WHITESPACE_PATTERN)
    compact = newer.disable_any_whitespace or "disable-any-whitespace" in options or not plan.any_whitespace
    closed = newer.disable_additional_properties
    if closed is None:
        closed = "no-additional-properties" in options or not plan.additional_properties
    return JsonStyle("" if compact else pattern, additional_properties=not closed)


def _backend_options(asked: str | None) -> list[str]:
    """vLLM's form: a back-end, or a back-end, a colon, and options between commas."""
    name, _, rest = (asked or "auto").partition(":")
    if name in _OTHER_BACKENDS:
        what = f"the structured-output back-end {name} {_OTHER_BACKENDS[name]}: it"
        raise not_in_this_version("guided_decoding_backend", what)
    if name not in _BACKENDS:
        message = f"guided_decoding_backend is {name[:60]!r}; it must be one of {', '.join(_BACKENDS)}"
        raise invalid("guided_decoding_backend", message, "invalid_value")
    options = [option for option in rest.split(",") if option]
    if unknown := [option for option in options if option not in _OPTIONS]:
        message = f"guided_decoding_backend has the option {unknown[0][:60]!r}; known are {', '.join(_OPTIONS)}"
        raise invalid("guided_decoding_backend", message, "invalid_value")
    return options


def _schema(given: Schema | str, field: str) -> Schema:
    """A schema may come as text."""
    return _decoded(given, field, dict[str, Any] | bool) if isinstance(given, str) else given


def _decoded(text: str, field: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(field, f"{field}: {error}", "invalid_json") from error
    except RecursionError as error:
        raise invalid(field, f"{field} is nested too deeply", "invalid_json") from error


def _bounded(text: str, field: str, most: int) -> str:
    if not text:
        raise invalid(field, f"{field} is empty", "invalid_value")
    if (size := len(text.encode())) > most:
        raise invalid(field, f"{field} has {size} bytes; {most} are allowed", "invalid_value")
    return text


def _refused(field: str, error: GrammarError) -> ApiError:
    path = field + error.path
    return invalid(path, f"{path}: {error}", "invalid_schema")
