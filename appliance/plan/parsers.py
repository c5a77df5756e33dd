"""Pass `parsers`: which parsers read the output of the model, and which tools its prompt shows."""

from appliance.catalog.parsers import REASONING_PARSERS, TOOL_PARSERS, Parser, detect_parser, find_parser
from appliance.checkpoint.mistral import TOKENIZER_MODE
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.serving_types import ParsersPlan


def plan_parsers(inputs: PlanInputs, template: str | None, ledger: Ledger) -> ParsersPlan:
    """template: the chat template that was planned."""
    decoding = inputs.spec.decoding
    tools = _plugin("tools", "tool_parser_plugin", decoding.tool_parser_plugin, ledger)
    if tools is None and decoding.tool_parser == AUTO and inputs.spec.model.tokenizer_mode == TOKENIZER_MODE:
        tools = _of_mistral(ledger)
    elif tools is None:
        tools = _path("tools", "tool_parser", decoding.tool_parser, TOOL_PARSERS, template, ledger)
    reasoning = _plugin("reasoning", "reasoning_parser_plugin", decoding.reasoning_parser_plugin, ledger)
    if reasoning is None:
        wanted = decoding.reasoning_parser
        reasoning = _path("reasoning", "reasoning_parser", wanted, REASONING_PARSERS, template, ledger)
    return ParsersPlan(
        tools=tools,
        reasoning=reasoning,
        auto_tool_choice=tools is not None and decoding.enable_auto_tool_choice is not False,
        exclude_tools_when_none=decoding.exclude_tools_when_tool_choice_none,
    )


def _of_mistral(ledger: Ledger) -> str | None:
    """No template shows the format. Not all of these models reason, so a parser for that is named by the spec."""
    named = find_parser(TOOL_PARSERS, TOKENIZER_MODE)
    reason = "mistral: the format in which mistral-common writes calls, as model.tokenizer_mode is mistral"
    return ledger.decide("serving.parsers.tools", named.path if named else None, "spec", reason)


def _plugin(field: str, spec_field: str, path: str | None, ledger: Ledger) -> str | None:
    return None if path is None else ledger.take(f"serving.parsers.{field}", f"decoding.{spec_field}", path)


def _path(
    field: str, spec_field: str, wanted: str, table: tuple[Parser, ...], template: str | None, ledger: Ledger
) -> str | None:
    path, spec_path = f"serving.parsers.{field}", f"decoding.{spec_field}"
    if wanted != AUTO:
        named = find_parser(table, wanted)
        return ledger.take(path, spec_path, named.path if named else None)
    found = detect_parser(table, template or "")
    if found is None:
        return ledger.decide(path, None, "model", f"the chat template shows no {field} of a known format")
    signs = " and ".join(found.signs)
    return ledger.decide(path, found.path, "model", f"{found.name}: the chat template has {signs}")
