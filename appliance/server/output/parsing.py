"""Reading of the answers of one request: the parsers, and the parts that are shown."""

import uuid
from dataclasses import dataclass

import msgspec

from appliance.engine.messages import Constraint
from appliance.plan.serving_types import StructuredPlan
from appliance.requests.errors import invalid
from appliance.requests.history import SHORT_ID
from appliance.server.output.message import MessageReader, ShownParts
from appliance.server.requests.tool_grammar import call_starts, calls_or_answer
from appliance.server.requests.tools import ToolWish
from appliance.text.output import ModelOutput


@dataclass(frozen=True, slots=True)
class OutputReading:
    """is_open: see OutputFormat.begins_open."""

    format: ModelOutput
    wish: ToolWish
    is_open: bool | None
    include_reasoning: bool = True

    @property
    def special_tokens(self) -> frozenset[str]:
        return self.format.special_tokens(uses_tools=self.wish.mode == "auto")

    @property
    def shows_reasoning(self) -> bool:
        return self.include_reasoning and (self.format.reasoning is not None or self.format.reads_all is not None)

    def reader(self, *, is_structured: bool = False) -> MessageReader:
        """Returns the reader of one sequence. is_structured: a grammar holds it to calls alone or an answer alone."""
        wish = self.wish
        starts = call_starts(wish, self.format.tools) if is_structured and wish.mode == "auto" else ()
        parser = self.format.new_parser(self.is_open, wish.context, wish.forced, starts)
        if parser is None:
            return MessageReader()
        shown = ShownParts(reasoning=self.include_reasoning, one_call=not self.wish.is_parallel)
        return MessageReader(parser, shown, self._new_id)

    def constraint(self, wished: Constraint | None, plan: StructuredPlan, *, thinks: bool) -> Constraint | None:
        """Returns the one constraint of the request, which begins after the reasoning: that of required calls, else
        `wished`. Beside `wished` the model may still call tools if the request lets it.

        thinks: see OutputFormat.end_of_reasoning. Raises ApiError 400 for what cannot be had together.
        """
        constraint = self.wish.constraint(plan) or wished
        if constraint is wished and wished is not None and self.wish.mode == "auto" and not self.format.reads_all:
            constraint = calls_or_answer(wished, self.wish, self.format.tools, plan)
        if constraint is None:
            return None
        if self.format.reads_all is not None:
            problem = f"structured output inside the messages of {self.format.reads_all.name} is not in this version"
            raise invalid(constraint.field, problem, "not_in_this_version")
        after = self.format.end_of_reasoning(self.is_open, thinks=thinks)
        return constraint if after is None else msgspec.structs.replace(constraint, after=after)

    def _new_id(self) -> str:
        tools = self.format.tools
        return uuid.uuid4().hex[:SHORT_ID] if tools is not None and tools.short_ids else f"call_{uuid.uuid4().hex[:24]}"
