"""New weights of several replicas: all that are there take them, or none does; those that come back get them first."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from appliance.base.log import fields, logger
from appliance.engine.messages import ErrorKind
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.service.errors import RequestFailedError
from appliance.service.replicas.replica import Replica

_log = logger("service")


class ReplicaWeights:
    """The weights that all replicas have to have; one with others gets no requests."""

    def __init__(self, replicas: Sequence[Replica], when_behind: Callable[[Replica], None]) -> None:
        """when_behind: is called with one that is there and has other weights than the others, to have it renewed."""
        self._replicas, self._when_behind = replicas, when_behind
        self._last: WeightUpdate | None = None  # None: those of the plan
        self._turn = asyncio.Lock()

    async def replace(self, update: WeightUpdate) -> dict[int, WeightStats]:
        """Has all replicas that take requests read and check new weights, and then put them in place; returns what each
        has. Raises RequestFailedError with the reason of one that cannot, and its number; then all keep those before.
        A caller that is cancelled leaves it to its end: replicas that have read wait for each other's word.
        """
        if update.path is None:
            raise RequestFailedError(ErrorKind.INTERNAL, "several replicas take weights of a checkpoint, not tensors")
        return await asyncio.shield(self._replace(update))

    async def _replace(self, update: WeightUpdate) -> dict[int, WeightStats]:
        async with self._turn:
            there = [each for each in self._replicas if each.takes_requests]
            await self._stage(there, update)
            told = await asyncio.gather(*map(self._settled, there))
            found = {each.number: stats for each, stats in zip(there, told, strict=True) if stats is not None}
            if not found:
                reason = "no replica is there, or none has taken the new weights: the log says why"
                raise RequestFailedError(ErrorKind.UNAVAILABLE, reason)
            digest = next(iter(found.values())).digest
            self._last = msgspec.structs.replace(update, sha256=digest, abort=False)
            for each in self._replicas:
                each.is_outdated = each.number not in found
        for each in self._replicas:
            if each.is_outdated and each.client.intake.is_open:  # it came back meanwhile, or did not take them
                self._when_behind(each)
        return found

    async def renew(self, replica: Replica) -> None:
        """Gives a replica that is back the weights of the others, before it gets requests. Raises RequestFailedError
        with the reason if it cannot take them."""
        async with self._turn:
            if replica.is_outdated and self._last is not None:
                await replica.client.update_weights(self._last)
                _log.info("a replica is back with the new weights", extra=fields(engine=replica.number))
            replica.is_outdated = False

    def is_gone(self, replica: Replica) -> None:
        """Its engine ended; the next one begins with the weights of the plan."""
        replica.is_outdated = self._last is not None

    async def _stage(self, replicas: Sequence[Replica], update: WeightUpdate) -> None:
        staged = await asyncio.gather(*(each.client.stage_weights(update) for each in replicas), return_exceptions=True)
        pairs = list(zip(replicas, staged, strict=True))
        failures = [(each.number, error) for each, error in pairs if error is not None]
        if not failures:
            return
        ready = [each for each, error in pairs if error is None]
        await asyncio.gather(*(each.client.settle_weights(is_wanted=False) for each in ready), return_exceptions=True)
        number, error = failures[0]
        if not isinstance(error, RequestFailedError):
            raise error
        raise RequestFailedError(error.kind, f"engine {number}: {error}")

    async def _settled(self, replica: Replica) -> WeightStats | None:
        """Has the weights that wait put in place. Returns None if the engine ended meanwhile, or took them not."""
        try:
            return await replica.client.settle_weights(is_wanted=True)
        except RequestFailedError as error:
            _log.error("a replica did not take new weights", extra=fields(engine=replica.number, reason=str(error)))
            return None
