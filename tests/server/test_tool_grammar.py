"""Tools that a model may call together with an answer of a given form: the grammar of every format that has one."""

import importlib
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken

from appliance.catalog.parsers import TOOL_PARSERS
from appliance.engine.grammar.guidance import GuidanceBackend
from appliance.engine.messages import Constraint, Vocabulary
from appliance.plan.serving_types import StructuredPlan
from appliance.requests.errors import ApiError
from appliance.server.requests.tool_grammar import call_starts, calls_or_answer
from appliance.server.requests.tools import ToolWish
from appliance.text.output import ModelOutput
from appliance.text.parsing.events import merge_events
from appliance.text.tools.format import ToolFormat
from tests.engine.grammar.vocabulary import EOS, byte_tokenizer
from tests.engine.grammar.walks import allowed, backend, walk
from tests.text.tools.parsing import calls_of, content_of

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/where"},
    },
    "required": ["days", "unit"],
    "$defs": {"where": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}
ANSWER = {
    "type": "object",
    "properties": {"said": {"type": "string", "maxLength": 4}},
    "required": ["said"],
    "additionalProperties": False,
}
TOOLS: dict[str, dict[str, Any] | None] = {"weather": WEATHER, "now": None}
REFUSED = ("gpt_oss", "gemma4")  # its messages hold all; its calls are no JSON
FORMATS = [entry for entry in TOOL_PARSERS if entry.name not in REFUSED]


def form_of(path: str) -> ToolFormat:
    module, _, name = path.partition(":")
    form: ToolFormat = getattr(importlib.import_module(module), name)
    return form


def wish(**changes: Any) -> ToolWish:
    return ToolWish("auto", **{"tools": TOOLS, "shown": [], **changes})


def constraint(form: ToolFormat, wished: ToolWish) -> Constraint:
    answer = Constraint(kind="json_schema", source=json.dumps(ANSWER), field="response_format", whitespace="")
    return calls_or_answer(answer, wished, form, StructuredPlan(any_whitespace=False))


def parsed(form: ToolFormat, wished: ToolWish, pieces: list[str]) -> Any:
    starts = call_starts(wished, form)
    parser = ModelOutput(form).new_parser(None, wished.context, None, starts)
    assert parser is not None
    events = merge_events([event for piece in pieces for event in parser.feed(piece)] + parser.finish())
    return content_of(events), calls_of(events)


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_walks_end_in_calls_or_in_the_answer(entry: Any) -> None:
    """Whatever the model says: calls whose arguments fit, or an answer that fits, read the same however it is cut."""
    form, wished = form_of(entry.path), wish()
    grammar = backend().compile(constraint(form, wished))
    kinds = set()
    for begin in ("", '{"said":"', *call_starts(wished, form)):
        for seed in range(6):
            said = walk(grammar, seed, begin=begin)
            if said is None:
                continue
            text = said.decode()
            content, calls = parsed(form, wished, [text])
            assert parsed(form, wished, list(text)) == (content, calls)
            kinds.add("calls" if calls else "answer")
            if calls:
                assert not content.strip(), text
            else:
                jsonschema.validate(json.loads(text), ANSWER)
                assert content == text
            for name, arguments in calls:
                schema = {**WEATHER, "additionalProperties": False} if name == "weather" else {"maxProperties": 0}
                if form.spellings[0].parameters is not None and "city" in json.loads(arguments):
                    schema = {**schema, "properties": {**WEATHER["properties"], "city": {"type": "string"}}}
                jsonschema.validate(json.loads(arguments), schema)
    assert kinds == {"calls", "answer"}


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_one_call_where_parallel_ones_are_off(entry: Any) -> None:
    form, wished = form_of(entry.path), wish(is_parallel=False, tools={"now": None})
    grammar = backend().compile(constraint(form, wished))
    for begin in call_starts(wished, form):
        said = walk(grammar, 1, begin=begin)
        assert said is not None
        assert parsed(form, wished, [said.decode()]) == ("", (("now", "{}"),))


def test_marks_that_are_special_tokens_are_said_as_such() -> None:
    tokenizer = byte_tokenizer()
    tokenizer = type(tokenizer).from_str(tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken("[TOOL_CALLS]", normalized=False)])
    marker = tokenizer.token_to_id("[TOOL_CALLS]")
    special = GuidanceBackend(Vocabulary(tokenizer=tokenizer.to_str(), eos_token_ids=(EOS,)), marker + 1)
    matcher = special.compile(constraint(form_of("appliance.text.tools.mistral:MISTRAL"), wish())).start()
    row = np.zeros(marker // 32 + 1, np.uint32)
    matcher.fill(row)
    assert {*tokenizer.encode("{", add_special_tokens=False).ids, marker} <= set(allowed(row))
    matcher.consume((marker,))
    assert matcher.forced() == [] or tokenizer.decode(matcher.forced()).startswith(" [")


def test_an_answer_that_looks_like_a_call_stays_an_answer() -> None:
    form = form_of("appliance.text.tools.hermes:HERMES")
    text = '{"said": "x", "more": \n{"name": "now", "arguments": {}}}'
    assert parsed(form, wish(), list(text)) == (text, ())


def test_what_cannot_be_spelled_is_named() -> None:
    form = form_of("appliance.text.tools.qwen3_coder:QWEN3_CODER")
    for tools, param in (
        ({"a": {"type": "object", "properties": {"a b>": {}}}}, "tools[0].function.parameters.properties"),
        ({"a": {"anyOf": [{"type": "object"}]}}, "tools[0].function.parameters"),
        ({"a:b": None}, "tools[0].function.name"),
    ):
        with pytest.raises(ApiError) as refused:
            constraint(form, wish(tools=tools))
        assert refused.value.param == param
    with pytest.raises(ApiError, match="cannot be combined with tools of mine"):
        constraint(ToolFormat(name="mine", script=form.script), wish())
