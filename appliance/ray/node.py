"""Planning a deployment on a node of the cluster, for the part of the node that Ray gives it."""

from pathlib import Path

import msgspec

from appliance.hardware import HardwareFacts, probe_machine
from appliance.hardware.granted import granted
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan


class NodeWork(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment, as it travels to a node.

    text: the spec as written; references to secrets are filled in on the node. file: the path it was read from, from
    whose folder relative paths start. num_cores, memory_bytes: what one engine may use of its node; None is all.
    """

    text: str
    file: str
    overrides: tuple[str, ...] = ()
    num_cores: int | None = None
    memory_bytes: int | None = None

    def plan(self) -> EnginePlan:
        """Plans for this node, and fetches the checkpoint where it is not here. Raises ApplianceError."""
        return self.plan_for(granted(probe_machine(), self.num_cores, self.memory_bytes))

    def plan_for(self, facts: HardwareFacts) -> EnginePlan:
        """Plans for a node of these facts. Raises ApplianceError."""
        return prepare(Path(self.file), self.overrides, facts, spec_text=self.text).plan

    def for_grant(self, num_cores: int | None, memory_bytes: int | None) -> "NodeWork":
        """Returns the same work for what one engine may use."""
        return msgspec.structs.replace(self, num_cores=num_cores, memory_bytes=memory_bytes)
