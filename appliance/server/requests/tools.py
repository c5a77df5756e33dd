"""The tools of a request: their definitions, and if the model may, must or must not call them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec

from appliance.engine.messages import Constraint
from appliance.plan.serving_types import ParsersPlan, StructuredPlan
from appliance.requests.chat_kinds import CHAT_CHOICES, CHAT_TOOLS
from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields
from appliance.requests.structured import JsonStyle, constraint_of_ready, ready_schema
from appliance.server.http.bodies import wrong_value
from appliance.server.requests.call_schemas import arguments_schema, calls_schema
from appliance.text.tools.forced import REQUIRED_CALLS, named_call
from appliance.text.tools.format import ToolContext, ToolFormat

MAX_TOOLS = 1024
_SPACE = " ?"  # between the parts of forced JSON: a model that may write endless white space sometimes does
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")

Mode = Literal["none", "auto", "required", "named"]


class FunctionFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls that a grammar makes always fit; others are the model's own


class ToolFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    kinds: ClassVar = CHAT_TOOLS

    type: Literal["function"]
    function: FunctionFields


class NameFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    kinds: ClassVar = CHAT_CHOICES

    function: NameFields


class AllowedFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


class AllowedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """Some of the tools; the others are as if they were not there."""

    allowed_tools: AllowedFields


Choice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


class _Tools(msgspec.Struct):
    """A frame that gives errors their path."""

    tools: list[ToolFields]


class _Choice(msgspec.Struct):
    tool_choice: Choice


@dataclass(frozen=True, slots=True)
class ToolWish:
    """tools: the parameters' schema by name. shown: the tools as the chat template gets them; None is no tools."""

    mode: Mode = "none"
    tools: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)
    shown: list[dict[str, Any]] | None = None
    name: str | None = None
    is_parallel: bool = True

    @property
    def context(self) -> ToolContext:
        schemas = {name: schema or {} for name, schema in self.tools.items()}
        return ToolContext(schemas, may_call=self.mode != "none")

    @property
    def forced(self) -> ToolFormat | None:
        """Returns the format that reads the calls that a grammar makes."""
        if self.mode == "named":
            return named_call(self.name or "")
        return REQUIRED_CALLS if self.mode == "required" else None

    def constraint(self, plan: StructuredPlan) -> Constraint | None:
        """The grammar of calls that must be. Raises ApiError 400 for a schema that cannot be enforced."""
        if self.mode not in ("named", "required"):
            return None
        if plan.backend is None:
            problem = "tool_choice required and a named tool need structured output, which is off on this server"
            raise invalid("tool_choice", problem, "unsupported_parameter")
        style = call_style(plan)
        ready, fields = {}, []
        for place, (name, parameters) in enumerate(self.tools.items()):
            if self.mode == "required" or name == self.name:
                fields.append(f"tools[{place}].function.parameters")
                ready[name] = ready_schema(arguments_schema(parameters, fields[-1]), fields[-1], style)
        if self.mode == "named":
            return constraint_of_ready(ready[self.name or ""], fields[0], style)
        calls, places = calls_schema(ready, fields, parallel=self.is_parallel)
        return constraint_of_ready(calls, "tools", style, places)


def call_style(plan: StructuredPlan) -> JsonStyle:
    """Returns the JSON style of arguments in calls that a grammar makes."""
    return JsonStyle(_SPACE if plan.any_whitespace else "", plan.additional_properties)


def tool_wish(fields: ChatFields, plan: ParsersPlan) -> ToolWish:
    """Raises ApiError 400 naming the field that is wrong or cannot be."""
    given = _tools(fields)
    choice = _choice(fields, bool(given))
    if not given:
        return ToolWish()
    tools = {tool.function.name: tool.function.parameters for tool in given}
    if len(tools) < len(given):
        raise invalid("tools", "two tools have the same name", "invalid_value")
    mode: Mode = "named"
    name: str | None = None
    if isinstance(choice, NamedChoice):
        name = _known(choice, tools, "tool_choice")
    elif isinstance(choice, AllowedChoice):
        mode, where = choice.allowed_tools.mode, "tool_choice.allowed_tools.tools"
        names = {_known(each, tools, f"{where}[{place}]") for place, each in enumerate(choice.allowed_tools.tools)}
        if not names:
            raise invalid(where, f"{where} is empty", "invalid_value")
        given = [tool for tool in given if tool.function.name in names]
        tools = {tool.function.name: tool.function.parameters for tool in given}
    else:
        mode = choice
    if mode == "auto":
        _check_auto(plan)
    hidden = mode == "none" and plan.exclude_tools_when_none
    shown = None if hidden else [_shown(tool) for tool in given]
    return ToolWish(mode, tools, shown, name, is_parallel=fields.parallel_tool_calls is not False)


def _known(choice: NamedChoice, tools: Mapping[str, object], where: str) -> str:
    name = choice.function.name
    if name not in tools:
        known = ", ".join(tools)[:200]
        problem = f"no tool is named {name[:100]!r}; there are {known}"
        raise invalid(f"{where}.function.name", problem, "invalid_value")
    return name


def with_note(description: str | None, title: str, value: object) -> str | None:
    """The description of a tool, and beneath it what templates have no place for. None and empty values add nothing."""
    if not value:
        return description
    note = f"{title}: {msgspec.json.encode(value).decode()}"
    return f"{description}\n\n{note}" if description else note


def shown_tools(fields: ChatFields) -> list[dict[str, Any]] | None:
    """The tools as the chat template gets them, whether or not the model may call them. Raises ApiError 400."""
    return [_shown(tool) for tool in _tools(fields)] or None


def _tools(fields: ChatFields) -> list[ToolFields]:
    if fields.tools is None:
        return []
    frame = {"tools": fields.tools}
    try:
        given = msgspec.convert(frame, _Tools, strict=True).tools
    except msgspec.ValidationError as error:
        raise wrong_value(error, frame, _Tools) from error
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"tools has {len(given)} tools; {MAX_TOOLS} are allowed", "invalid_value")
    for place, tool in enumerate(given):
        if not _NAME.fullmatch(tool.function.name):
            where = f"tools[{place}].function.name"
            raise invalid(where, f"{where} must have 1 to 128 letters, digits, or any of _ . : / -", "invalid_value")
    return given


def _choice(fields: ChatFields, has_tools: bool) -> Choice:
    if fields.tool_choice is None:
        return "auto" if has_tools else "none"
    frame = {"tool_choice": fields.tool_choice}
    try:
        choice = msgspec.convert(frame, _Choice, strict=True).tool_choice
    except msgspec.ValidationError as error:
        raise wrong_value(error, frame, _Choice) from error
    if not has_tools and choice not in ("none", "auto"):
        raise invalid("tool_choice", "tool_choice needs tools", "invalid_value")
    return choice


def _check_auto(plan: ParsersPlan) -> None:
    if plan.tools is None:
        problem = (
            "this model has no parser of tool calls, so it cannot decide to call tools: set decoding.tool_parser, "
            "or ask with tool_choice required or a named tool"
        )
        raise invalid("tool_choice", problem, "unsupported_parameter")
    if not plan.auto_tool_choice:
        problem = "tool_choice auto is off on this server (decoding.enable_auto_tool_choice: false)"
        raise invalid("tool_choice", problem, "not_allowed")


def _shown(tool: ToolFields) -> dict[str, Any]:
    """Returns the tool in OpenAI's form, without what was not given; templates index `parameters`."""
    function: dict[str, Any] = {"name": tool.function.name, "description": tool.function.description or ""}
    function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}
