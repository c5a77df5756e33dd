"""How the answers of one request are read: which parsers, and what of their findings is shown."""

import uuid
from dataclasses import dataclass

import msgspec

from appliance.engine.messages import Constraint
from appliance.server.errors import invalid
from appliance.server.history import SHORT_ID
from appliance.server.message import MessageReader, ShownParts
from appliance.server.tools import ToolWish
from appliance.text.output import OutputFormat


@dataclass(frozen=True, slots=True)
class OutputReading:
    """is_open: see OutputFormat.begins_open."""

    format: OutputFormat
    wish: ToolWish
    is_open: bool | None
    include_reasoning: bool = True

    @property
    def special_tokens(self) -> frozenset[str]:
        return self.format.special_tokens(uses_tools=self.wish.mode == "auto")

    @property
    def shows_reasoning(self) -> bool:
        return self.include_reasoning and (self.format.reasoning is not None or self.format.reads_all is not None)

    def reader(self) -> MessageReader:
        """For one sequence."""
        parser = self.format.new_parser(self.is_open, self.wish.context, self.wish.forced)
        if parser is None:
            return MessageReader()
        shown = ShownParts(reasoning=self.include_reasoning, one_call=not self.wish.is_parallel)
        return MessageReader(parser, shown, self._new_id)

    def constraint(self, wished: Constraint | None, calls: Constraint | None, *, thinks: bool) -> Constraint | None:
        """The one constraint of the request, which begins behind the reasoning.

        thinks: see OutputFormat.end_of_reasoning. Raises ApiError 400 for what cannot be had together.
        """
        if wished is not None and (calls is not None or self.wish.mode == "auto"):
            problem = f"{wished.field} cannot be combined with tools, unless tool_choice is none"
            raise invalid(wished.field, problem, "unsupported_parameter")
        constraint = wished or calls
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
