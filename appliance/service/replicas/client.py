"""Several replicas as the front ends see them: one client, which chooses the replica of each request."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from appliance.engine.adapter_messages import AdapterReport
from appliance.engine.messages import ErrorKind
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.errors import RequestFailedError
from appliance.service.intake import Intake
from appliance.service.policy import Meter, OpenPolicy, RequestPolicy
from appliance.service.replicas.prefixes import chain_of
from appliance.service.replicas.probing import first_success
from appliance.service.replicas.replica import Replica
from appliance.service.replicas.routing import choose
from appliance.service.replicas.weights import ReplicaWeights
from appliance.service.requests import TextRequest
from appliance.service.streams import OutputStream
from appliance.service.text_side import TextSide


class ReplicaClient:
    """Does what an EngineClient does, over all replicas that take requests. Limits hold over all together."""

    def __init__(
        self, replicas: Sequence[Replica], limits: AdmissionLimits, when_behind: Callable[[Replica], None]
    ) -> None:
        """when_behind: as of ReplicaWeights."""
        self.policy: RequestPolicy = OpenPolicy()
        self._replicas = tuple(replicas)
        self._max_waiting = limits.max_waiting
        self._requests = itertools.count(1)
        self.weights = ReplicaWeights(self._replicas, when_behind)

    @property
    def num_open_requests(self) -> int:
        return sum(each.client.num_open_requests for each in self._replicas)

    @property
    def num_open_sequences(self) -> int:
        return sum(each.client.num_open_sequences for each in self._replicas)

    @property
    def text(self) -> TextSide:
        """Returns what `use_text` was given."""
        return self._replicas[0].client.text

    @property
    def adapters(self) -> Mapping[str, AdapterReport]:
        """What the replicas found of the adapters that they serve, by name."""
        open_ones = self._open or self._replicas
        return open_ones[0].client.adapters

    @property
    def engines(self) -> Sequence[EngineClient]:
        """The clients of the replicas that take requests. Raises RequestFailedError when none does."""
        return list(self.numbered_engines.values())

    @property
    def numbered_engines(self) -> Mapping[int, EngineClient]:
        """The same by the numbers of the replicas. Raises like `engines`."""
        if not self._open:
            raise self._intake.refusal()
        return {each.number: each.client for each in self._open}

    @property
    def _awake(self) -> list[Replica]:
        """Those that take requests and do not sleep; if all sleep, they say so themselves."""
        there = self._open
        return [each for each in there if not each.client.is_asleep] or there

    @property
    def _open(self) -> list[Replica]:
        return [each for each in self._replicas if each.takes_requests]

    @property
    def _intake(self) -> Intake:
        """Why none takes requests, as the first replica says it."""
        return self._replicas[0].client.intake

    async def replace_weights(self, update: WeightUpdate) -> Mapping[int, WeightStats]:
        """Does what ReplicaWeights.replace does."""
        return await self.weights.replace(update)

    def use_text(self, text: TextSide) -> None:
        """Sets the text side, which the first `generate` needs."""
        for each in self._replicas:
            each.client.use_text(text)

    def use_limits(self, limits: AdmissionLimits) -> None:
        """Sets the limits of requests from now on."""
        self._max_waiting = limits.max_waiting

    def check_admission(self) -> None:
        """Raises RequestFailedError (unavailable, overloaded) when nothing more can be taken now."""
        there = self._awake
        if not there:
            raise self._intake.refusal()
        num_open = sum(each.client.num_open_sequences for each in there)
        waiting = num_open - sum(each.num_places for each in there)
        if self._max_waiting is not None and waiting >= self._max_waiting and num_open:
            reason = f"{waiting} sequences wait already, {self._max_waiting} may; try again later"
            raise RequestFailedError(ErrorKind.OVERLOADED, reason)

    def predicted_wait_s(self) -> float:
        """Predicts how long a prompt that comes now would wait where it would wait least."""
        return min((each.client.predicted_wait_s() for each in self._awake), default=0.0)

    def note_shed(self) -> None:
        """Counts a request that a policy refused because of its predicted wait."""
        self._replicas[0].client.note_shed()  # the figure is the service's

    def generate(self, *requests: TextRequest, is_streamed: bool = True, meter: Meter | None = None) -> OutputStream:
        """Does what EngineClient.generate does. Each request goes as a whole to one replica, and all of its sequences
        with it; those of one call end together, wherever they run."""
        self.check_admission()
        admitted: Sequence[TextRequest] = requests
        if meter is None:
            admitted, meter = self.policy.admit(requests)
        group, first_index = self._replicas[0].client.begin(len(admitted), meter), 0
        for request in admitted:
            replica, num_known = self._chosen(request)
            replica.client.open(request, group, first_index, is_streamed=is_streamed, num_known=num_known)
            first_index += request.sampling.n
        return group.stream

    def _chosen(self, request: TextRequest) -> tuple[Replica, int]:
        """Returns the replica that takes the request, and how many of its tokens are likely to be cached there."""
        chain, there = chain_of(request), self._awake
        replica = there[choose([each.candidate(request, chain) for each in there])]
        num_known = replica.known(chain).num_tokens
        replica.note(request, chain, next(self._requests))
        return replica, num_known

    async def probe(self) -> None:
        """Sends one token through each replica; returns when the first has come. Raises RequestFailedError when none
        comes."""
        await first_success([each.probe() for each in self.engines])

    def fail_all(self, reason: str) -> None:
        """Fails every open request and call."""
        for each in self._replicas:
            each.client.fail_all(reason)
