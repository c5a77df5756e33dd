"""New weights of several replicas, whose engines are played by the test."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from appliance.engine.messages import ErrorKind
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.service.errors import RequestFailedError
from appliance.service.replicas.weights import ReplicaWeights


class Engine:
    """Reads new weights until it is let on; then they wait for word of all."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun = asyncio.Event()
        self.settled: list[bool] = []
        self.refuses: str | None = None  # to put them in place
        self.intake = SimpleNamespace(is_open=True)

    async def stage_weights(self, update: WeightUpdate) -> None:
        self.begun.set()
        await self.may_end.wait()

    async def settle_weights(self, *, is_wanted: bool) -> WeightStats:
        self.settled.append(is_wanted)
        if self.refuses is not None:
            raise RequestFailedError(ErrorKind.INTERNAL, self.refuses)
        return WeightStats(version=len(self.settled), digest="new")


def replicas_of(engines: Sequence[Engine]) -> list[Any]:
    return [
        SimpleNamespace(number=number, client=each, takes_requests=True, is_outdated=False)
        for number, each in enumerate(engines)
    ]


async def test_one_that_does_not_take_what_the_others_have_gets_no_requests_and_is_told_of() -> None:
    engines, behind = [Engine(), Engine()], list[int]()
    replicas = replicas_of(engines)
    weights = ReplicaWeights(replicas, lambda replica: behind.append(replica.number))
    engines[1].refuses = "an adapter came meanwhile"
    for each in engines:
        each.may_end.set()
    found = await weights.replace(WeightUpdate(path="/there"))
    assert list(found) == [0]
    assert [each.is_outdated for each in replicas] == [False, True]
    assert behind == [1]


async def test_a_caller_that_goes_away_leaves_no_replica_waiting_for_word() -> None:
    engines = [Engine(), Engine()]
    weights = ReplicaWeights(replicas_of(engines), lambda replica: None)
    caller = asyncio.create_task(weights.replace(WeightUpdate(path="/there")))
    for each in engines:
        await each.begun.wait()
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    for each in engines:
        each.may_end.set()
    found = await weights.replace(WeightUpdate(path="/there"))  # in its turn
    assert [each.settled for each in engines] == [[True, True], [True, True]]
    assert {number: stats.version for number, stats in found.items()} == {0: 2, 1: 2}
