"""How many engines each node of a cluster has room for. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.units import format_size
from appliance.hardware.ray_cluster import ClusterNode
from appliance.plan.types import EnginePlan


class NoRoomError(ApplianceError):
    """No node of the cluster has room for what was asked."""

    exit_code = ExitCode.DOES_NOT_FIT


class EngineNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine takes of its node."""

    num_cores: int
    memory_bytes: int
    num_accelerators: int

    @classmethod
    def of(cls, plan: EnginePlan) -> "EngineNeeds":
        ranks = plan.parallel.tensor * plan.parallel.pipeline * plan.parallel.replicas
        on_host = plan.device == "cpu"
        items = plan.memory[0].items if on_host else plan.memory[0].host_items
        return cls(
            num_cores=plan.kernels.num_threads * (ranks if on_host else 1),
            memory_bytes=sum(item.size_bytes for item in items),
            num_accelerators=0 if on_host else ranks,
        )

    def room(self, node: ClusterNode) -> int:
        """Returns how many such engines a node has room for."""
        found = [node.num_cores // max(self.num_cores, 1)]
        if self.memory_bytes:
            found.append(node.memory_bytes // self.memory_bytes)
        if self.num_accelerators:
            found.append(node.num_accelerators // self.num_accelerators)
        return min(found)

    def lacks(self, node: ClusterNode) -> str:
        """Returns what a node without room lacks."""
        pairs = (
            (self.num_cores, node.num_cores, f"{self.num_cores} CPUs, and Ray has {node.num_cores} of it"),
            (
                self.memory_bytes,
                node.memory_bytes,
                f"{format_size(self.memory_bytes)} of memory, and Ray has {format_size(node.memory_bytes)} of it",
            ),
            (
                self.num_accelerators,
                node.num_accelerators,
                f"{self.num_accelerators} accelerators, and it has {node.num_accelerators}",
            ),
        )
        return "an engine needs " + "; ".join(text for needed, there, text in pairs if needed > there)


def place(
    nodes: Sequence[ClusterNode], needs: Mapping[str, EngineNeeds | str], wanted: int | None = None
) -> list[ClusterNode]:
    """Returns the node of each engine, the roomiest nodes first and in turn: `wanted` of them, or as many as fit.

    needs: of an engine by the id of its node, or why it cannot run there. Raises NoRoomError that says what each node
    lacks.
    """
    rooms = {node.id: need.room(node) for node in nodes if isinstance(need := needs[node.id], EngineNeeds)}
    placed: list[ClusterNode] = []
    while any(rooms.values()) and (wanted is None or len(placed) < wanted):
        for node in sorted(nodes, key=lambda each: -rooms.get(each.id, 0)):
            if rooms.get(node.id, 0) and (wanted is None or len(placed) < wanted):
                rooms[node.id] -= 1
                placed.append(node)
    if (wanted is not None and len(placed) < wanted) or not placed:
        reasons = "; ".join(f"node {node.address}: {_reason(needs[node.id], node)}" for node in nodes)
        asked = "an engine" if wanted is None else f"{wanted} engines"
        raise NoRoomError(
            f"the Ray cluster has no room for {asked} ({len(placed)} fit): {reasons or 'it has no nodes'}",
            hint="batch.num_replicas, hardware.num_threads and hardware.memory.kv_cache say how much is asked",
        )
    return placed


def _reason(need: EngineNeeds | str, node: ClusterNode) -> str:
    if isinstance(need, str):
        return need
    room = need.room(node)
    return f"room for {room}" if room else need.lacks(node)
