"""Ranks on the nodes of a Ray cluster: actors in a placement group, which join as ranks of other machines do.

The engine's process is the leader and a driver of the cluster: Ray ends the actors with it, whatever ends it.
"""

import contextlib
import secrets
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from appliance.base.extras import import_extra
from appliance.engine.ranks.handles import RankHandle, RankStartError
from appliance.engine.ranks.join import JoinRequest, run_rank
from appliance.engine.ranks.meeting import AtAddress
from appliance.engine.ranks.messages import Load
from appliance.hardware.ray_cluster import EXTRA, alive_nodes, driver
from appliance.plan.types import EnginePlan

ASKED_BY: Final = "parallelism.backend: ray"
_TOKEN_BYTES: Final = 32
_NODE_LABEL: Final = "ray.io/node-id"


class RankActor:
    """Runs one rank in an actor's process, which ends with the connection to the leader."""

    def run(self, address: tuple[str, int], rank: int, token: str, wait_s: float) -> int:
        """Returns the exit code of the rank. Raises RefusedError if leader and rank do not belong together."""
        return run_rank(JoinRequest(address, rank, wait_s=wait_s), token)


class OnRay:
    """A meeting of ranks on several nodes: those beyond the leader's are actors, on other nodes that have room."""

    def __init__(self, plan: EnginePlan) -> None:
        """Raises RankStartError that says what each node lacks, MissingExtraError, and ApplianceError without a
        cluster."""
        parallel = plan.parallel
        self._per_node = parallel.num_ranks // parallel.nnodes
        self._token, self._join_timeout_s = secrets.token_hex(_TOKEN_BYTES), parallel.join_timeout_s
        with contextlib.ExitStack() as opened:
            with _same_handler():
                self._ray = opened.enter_context(driver(ASKED_BY))
            address = self._ray.util.get_node_ip_address()
            here = msgspec.structs.replace(parallel, master_addr=address, master_port=0)
            self._at = AtAddress(msgspec.structs.replace(plan, parallel=here), self._token)
            opened.callback(self._at.close)
            self._group = self._reserved(plan)
            opened.callback(self._ray.util.remove_placement_group, self._group)
            self._opened = opened.pop_all()
        self.rendezvous = self._at.rendezvous

    def load(self, plan: EnginePlan, rank: int) -> Load:
        return self._at.load(plan, rank)

    def start(self, plan: EnginePlan, rank: int) -> RankHandle:
        joined = self._at.start(plan, rank)
        if rank < self._per_node:
            return joined
        bundle = rank // self._per_node - 1
        strategies = import_extra("ray.util.scheduling_strategies", extra=EXTRA, asked_by=ASKED_BY)
        place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        share = needs_of_rank(plan)
        options = {"num_cpus": share["CPU"], "num_gpus": share.get("GPU", 0), "scheduling_strategy": place}
        actor = self._ray.remote(RankActor).options(**options).remote()
        ended = actor.run.remote(self._at.door_address, rank, self._token, self._join_timeout_s)
        return RayRank(self._ray, joined, actor, ended, self._node_of(bundle))

    def close(self) -> None:
        self._opened.close()

    def _reserved(self, plan: EnginePlan) -> Any:
        """Returns a placement group with a bundle for each other node, which Ray holds together."""
        bundle = {name: number * self._per_node for name, number in needs_of_rank(plan).items()}
        count = plan.parallel.nnodes - 1
        not_here = {_NODE_LABEL: f"!{self._ray.get_runtime_context().get_node_id()}"}
        group = self._ray.util.placement_group(
            [bundle] * count, strategy="STRICT_SPREAD", bundle_label_selector=[not_here] * count
        )
        if not group.wait(self._join_timeout_s):
            self._ray.util.remove_placement_group(group)
            reasons = "; ".join(lacks(node, bundle) for node in alive_nodes(self._ray))
            raise RankStartError(
                f"the Ray cluster had no {count} nodes beside this one with room for {self._per_node} ranks within "
                f"{self._join_timeout_s:g} s: {reasons}",
                hint="parallelism.nnodes says on how many machines ranks are, and parallelism.join_timeout how long",
            )
        return group

    def _node_of(self, bundle: int) -> str:
        """Returns the address of the node that has a bundle."""
        found = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"][bundle]
        return next((node["NodeManagerAddress"] for node in self._ray.nodes() if node["NodeID"] == found), "unknown")


class RayRank:
    """A rank in an actor. One that ends before it has joined fails the start at once, with its reason."""

    def __init__(self, ray: Any, joined: RankHandle, actor: Any, ended: Any, node: str) -> None:
        """ended: the reference to what its `run` returns. node: the address of its node."""
        self._ray, self._joined, self._actor, self._ended, self._node = ray, joined, actor, ended, node
        self._has_joined = threading.Event()
        self._reason = ""
        self.phase = f"starts on node {node}"

    def connect(self, first: Load) -> Connection:
        threading.Thread(target=self._watch, name="rank of Ray", daemon=True).start()
        try:
            connection = self._joined.connect(first)
        except RankStartError as error:
            if not self._reason:
                raise
            raise RankStartError(f"a rank on node {self._node} could not join: {self._reason}") from error
        self._has_joined.set()
        return connection

    def wait(self, timeout_s: float | None = None) -> str | None:
        how = self._joined.wait(timeout_s)
        return None if how is None else f"{how} (node {self._node})"

    def kill(self) -> None:
        self._joined.kill()
        self._ray.kill(self._actor)

    def _watch(self) -> None:
        try:
            self._ray.get(self._ended)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            self._reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        if not self._has_joined.is_set():
            self._joined.kill()


def needs_of_rank(plan: EnginePlan) -> dict[str, float]:
    """Returns what one rank takes of its node, by Ray's names of resources."""
    on_host = plan.device == "cpu"
    items = plan.memory[0].items if on_host else plan.memory[0].host_items
    found: dict[str, float] = {"CPU": plan.kernels.num_threads if on_host else 1}
    memory = sum(item.size_bytes for item in items)
    found |= {"memory": memory} if memory else {}
    return found if on_host else {**found, "GPU": 1}


def lacks(node: dict[str, Any], bundle: dict[str, float]) -> str:
    """Returns what a node of `ray.nodes()` has too little of for a bundle."""
    short = [
        f"{name} {node['Resources'].get(name, 0):.0f} of {number:.0f}"
        for name, number in bundle.items()
        if node["Resources"].get(name, 0) < number
    ]
    return f"node {node['NodeManagerAddress']} has {', '.join(short) or 'enough, if it is not this one and not in use'}"


@contextlib.contextmanager
def _same_handler() -> Iterator[None]:
    """Keeps what this process does at SIGTERM, which a driver of Ray would change."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
