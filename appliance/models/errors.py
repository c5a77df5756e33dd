"""The one error of this package."""

from typing import Literal

import msgspec

from appliance.base.errors import ApplianceError

Concern = Literal["checkpoint", "rotary", "context", "windows", "embeds"]


class Problem(msgspec.Struct, frozen=True):
    """One thing that a family cannot express. `concerns`: the part to change, which is the checkpoint, its rotary
    parameters, the longest sequence, that windows are disabled, or that prompts have embeddings."""

    message: str
    concerns: Concern = "checkpoint"
    allowed: str = ""
    hint: str = ""


class ModelError(ApplianceError):
    """A config needs something that its family cannot express in this version. `problems`: all such things."""

    def __init__(self, *problems: Problem) -> None:
        """Takes at least one problem."""
        self.problems = problems
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        super().__init__("; ".join(problem.message for problem in problems), hint="; ".join(hints) or None)
