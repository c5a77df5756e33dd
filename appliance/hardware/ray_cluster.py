"""The cluster that this process is a driver of, and what its nodes are."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.extras import import_extra
from appliance.hardware import HardwareFacts, probe_machine

EXTRA = "ray"
_PATIENCE_S = 60.0  # for a node to say what it is


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive. num_cores, memory_bytes, num_accelerators: what Ray may give away of it."""

    id: str
    address: str
    facts: HardwareFacts
    num_cores: int
    memory_bytes: int
    num_accelerators: int


@contextlib.contextmanager
def driver(asked_by: str) -> Iterator[Any]:
    """Connects to the cluster that RAY_ADDRESS names, or to the one on this machine, and yields the package `ray`.

    asked_by: what needs it. Where this process is a driver already, it stays one. Raises MissingExtraError, and
    ApplianceError where there is no cluster.
    """
    ray = import_extra("ray", extra=EXTRA, asked_by=asked_by)
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
    except (ConnectionError, OSError, RuntimeError) as error:
        hint = "ray start --head, or RAY_ADDRESS=HOST:PORT"
        raise ApplianceError(f"{asked_by}: no Ray cluster answers: {error}", hint=hint) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def ask_nodes(ray: Any) -> list[ClusterNode]:
    """Asks each node that is alive for its facts. Raises ApplianceError where one does not answer."""
    alive = alive_nodes(ray)
    ask = ray.remote(num_cpus=0)(probe_machine)
    asked = [ask.options(scheduling_strategy=on_node(ray, node["NodeID"])).remote() for node in alive]
    try:
        found = ray.get(asked, timeout=_PATIENCE_S)
    except ray.exceptions.RayError as error:
        reason = str(error).splitlines()[0]
        hint = "the appliance has to be installed on every node"
        raise ApplianceError(f"a node of the Ray cluster does not say what it is: {reason}", hint=hint) from error
    return [_node(node, facts) for node, facts in zip(alive, found, strict=True)]


def alive_nodes(ray: Any) -> list[dict[str, Any]]:
    """Returns what Ray says of each node that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def on_node(ray: Any, node_id: str) -> Any:
    """Returns the strategy by which Ray places something on one node."""
    strategies = import_extra("ray.util.scheduling_strategies", extra=EXTRA, asked_by="ray")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


def _node(node: dict[str, Any], facts: HardwareFacts) -> ClusterNode:
    resources: dict[str, float] = node["Resources"]
    return ClusterNode(
        id=node["NodeID"],
        address=node["NodeManagerAddress"],
        facts=facts,
        num_cores=int(resources.get("CPU", 0)),
        memory_bytes=int(resources.get("memory", 0)),
        num_accelerators=int(resources.get("GPU", 0)),
    )
