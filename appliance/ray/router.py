"""Serve's router of requests to engines: by cached prefix, and by load. Ray loads this module by its name."""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from appliance.ray.prefixes import SeenPrefixes


class PrefixRouter(RequestRouter):
    """Sends a prompt to the replica that was given its beginning before, unless that one has too much to do.

    The first argument of a request is its HttpCall, the second the digests of its prompt (prefixes.pieces_of).
    """

    def initialize_state(self, **_: Any) -> None:
        """Begins without knowing a prefix."""
        self._prefixes: SeenPrefixes[ReplicaID] = SeenPrefixes()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the chosen replica, then the others, those with the least to do first, for when it takes no more."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        loads = {each.replica_id: self._load(each.replica_id) for each in candidate_replicas}
        chosen = self._prefixes.choose(_pieces(pending_request), loads)
        ordered = sorted(candidate_replicas, key=lambda each: (each.replica_id != chosen, loads[each.replica_id]))
        return [[each] for each in ordered]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Notes where a prompt went."""
        self._prefixes.note(_pieces(pending_request), replica_id)

    def _load(self, replica_id: ReplicaID) -> int:
        return self.replica_queue_len_cache.get(replica_id) or 0


def _pieces(request: PendingRequest | None) -> tuple[bytes, ...]:
    return request.args[1] if request is not None and len(request.args) > 1 else ()
