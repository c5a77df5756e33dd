"""One of several engines, and what the router knows of it."""

from collections import OrderedDict

from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.replicas.prefixes import Chain, Known, KnownPrefixes
from appliance.service.replicas.routing import Candidate
from appliance.service.requests import TextRequest


class Replica:
    """number: as metrics, status and logs name it."""

    def __init__(self, number: int, client: EngineClient, plan: EnginePlan) -> None:
        self.number = number
        self.client = client
        client.when_emptied = self.forget
        self.is_held = False  # it gets no requests, though its engine takes them
        self.is_outdated = False  # nor while it has other weights than the others
        self.use_plan(plan)

    def use_plan(self, plan: EnginePlan) -> None:
        """The engine that is there from now on has this plan, and an empty cache."""
        self.client.use_limits(AdmissionLimits(plan.scheduler.max_num_seqs, None))  # who waits is counted over all
        self._max_num_seqs = plan.scheduler.max_num_seqs
        is_cached = plan.cache.prefix_caching
        self._known = KnownPrefixes(plan.cache.num_blocks * plan.cache.block_size if is_cached else 0)
        self._is_cached = is_cached
        self._max_loras = plan.adapters.max_loras if plan.adapters is not None else 0
        self._adapters: OrderedDict[str, None] = OrderedDict()  # likely in slots, the one used last at the end
        self._last_used = 0

    @property
    def takes_requests(self) -> bool:
        return self.client.intake.is_open and not self.is_held and not self.is_outdated

    @property
    def num_places(self) -> int:
        """The number of sequences that run at once."""
        return self._max_num_seqs

    def candidate(self, request: TextRequest, chain: Chain) -> Candidate:
        """Returns what the choice of a replica for this request depends on."""
        num_sequences = self.client.num_open_sequences
        return Candidate(
            worth=self.known(chain).worth,
            num_waiting=self.client.num_new_tokens,
            num_sequences=num_sequences,
            has_place=num_sequences < self._max_num_seqs,
            has_adapter=request.adapter is None or request.adapter in self._adapters,
            last_used=self._last_used,
        )

    def known(self, chain: Chain) -> Known:
        """Returns what the replica is likely to have cached of a prompt."""
        return self._known.find(chain)

    def note(self, request: TextRequest, chain: Chain, now: int) -> None:
        """The request was sent there. now: rises with each request of the service."""
        self._last_used = now
        if self._is_cached:
            self._known.note(chain)
        if request.adapter is not None:
            self._adapters[request.adapter] = None
            self._adapters.move_to_end(request.adapter)
            while len(self._adapters) > self._max_loras:
                self._adapters.popitem(last=False)

    def forget(self) -> None:
        """The engine is another one, or its cache was emptied."""
        self._known.clear()
        self._adapters.clear()
