"""New weights of several replicas, whose engines are played by the test."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.service.replicas.weights import ReplicaWeights


class Engine:
    """Reads new weights until it is let on; then they wait for word of all."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun = asyncio.Event()
        self.settled: list[bool] = []
        self.intake = SimpleNamespace(is_open=True)

    async def stage_weights(self, update: WeightUpdate) -> None:
        self.begun.set()
        await self.may_end.wait()

    async def settle_weights(self, *, is_wanted: bool) -> WeightStats:
        self.settled.append(is_wanted)
        return WeightStats(version=len(self.settled), digest="new")


async def test_a_caller_that_goes_away_leaves_no_replica_waiting_for_word() -> None:
    engines = [Engine(), Engine()]
    replicas: list[Any] = [
        SimpleNamespace(number=number, client=each, takes_requests=True, is_outdated=False)
        for number, each in enumerate(engines)
    ]
    weights = ReplicaWeights(replicas)
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
