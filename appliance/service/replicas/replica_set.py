"""Keeps several engines with one plan running, each with a supervisor of its own."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.engine.messages import EngineEvent, ErrorKind
from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.engine_spawn import SpawnedEngine
from appliance.service.errors import RequestFailedError
from appliance.service.health import EngineState, Health
from appliance.service.intake import REPLACED
from appliance.service.metrics import ServiceMetrics
from appliance.service.replicas.client import ReplicaClient
from appliance.service.replicas.health import SetHealth
from appliance.service.replicas.replica import Replica
from appliance.service.rolling import Check, RollRules
from appliance.service.supervisor import EnginePaths, Supervisor

if TYPE_CHECKING:
    from appliance.service.step_group import StepGroup

_log = logger("service")
_LOOK_EVERY_S = 0.05  # at what is open, and at who is ready

SetListener = Callable[[int, EngineEvent | Health], None]
"""Hears of the engine of a number every boot phase and every change of health, in order."""


class ReplicaSet:
    """Does what a Supervisor does, over all replicas. `client` chooses among them."""

    def __init__(
        self,
        plan: EnginePlan,
        paths: EnginePaths,
        metrics: ServiceMetrics,
        *,
        listener: SetListener = lambda number, event: None,
        command: Sequence[str] = (),
        first: SpawnedEngine | None = None,
    ) -> None:
        """first: the first replica's engine, which was started before us."""
        self._plan = plan
        self._paths = paths
        self._metrics = metrics
        self._listener = listener
        self._command = command
        self._is_ending = False
        self._renewals: dict[int, asyncio.Task[None]] = {}  # kept, so that they are not collected while they run
        parallel = plan.parallel
        numbers = range(parallel.first_replica, parallel.first_replica + parallel.replicas)
        self._group = _group_of(numbers, self._lose_others, parallel.tensor) if parallel.spreads_experts else None
        self._replicas = {number: Replica(number, self._client(number), plan) for number in numbers}
        self._supervisors = {
            number: self._supervisor(number, paths.plan, plan, first if number == numbers[0] else None)
            for number in numbers
        }
        replicas, limits = tuple(self._replicas.values()), AdmissionLimits.of(plan.scheduler)
        self.client = ReplicaClient(replicas, limits, self._begin_renewal)
        self.health = SetHealth(lambda: {number: each.health for number, each in self._supervisors.items()})

    @property
    def endpoints(self) -> Sequence[str]:
        """The addresses of the engines' sockets; empty ones before the first start."""
        return [each.endpoint for each in self._supervisors.values()]

    def start(self) -> None:
        """Begins in the background; follow `health`."""
        for each in self._supervisors.values():
            each.start()

    async def settled(self) -> Health | SetHealth:
        """Waits until all replicas are ready, or one is given up, whose health it returns then: a start is whole."""
        waiting = {asyncio.create_task(each.settled()) for each in self._supervisors.values()}
        try:
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                failed = [each.result() for each in ended if each.result().state is EngineState.FAILED]
                if failed:
                    return failed[0]
        finally:
            for each in waiting:
                each.cancel()
        return self.health

    def use_plan(self, plan: EnginePlan) -> None:
        """Other limits and another rule of restarts, for all (see Supervisor.use_plan)."""
        self._plan = plan
        for each in self._supervisors.values():
            each.use_plan(plan)

    async def change_adapters(self, plan: EnginePlan) -> None:
        """Makes all replicas serve the adapters of this plan. One that is away begins with them when it is back.

        Raises ApplianceError with the reason of one that refuses, or when all are away; then all serve those before.
        """
        before, self._plan = self._plan, plan
        there = await asyncio.gather(*(self._change(each, plan) for each in self._supervisors), return_exceptions=True)
        failures = [each for each in there if isinstance(each, BaseException)]
        if not failures and any(there):
            return
        self._plan = before
        back = await asyncio.gather(*(self._change(each, before) for each in self._supervisors), return_exceptions=True)
        for failure in (each for each in back if isinstance(each, BaseException)):
            _log.error("a replica does not go back to the adapters before", extra=fields(reason=str(failure)))
        if failures:
            raise failures[0]
        raise ApplianceError(f"no engine is there to serve other adapters: {self.health.reason}")

    async def _change(self, number: int, plan: EnginePlan) -> bool:
        """Returns whether the replica was there. Raises ApplianceError when it refuses."""
        supervisor = self._supervisors[number]
        try:
            await supervisor.change_adapters(plan)
        except RequestFailedError as failure:
            if failure.kind is not ErrorKind.UNAVAILABLE:
                raise
            supervisor.start_with(plan)
            return False
        return True

    async def roll(self, plan: EnginePlan, path: Path, rules: RollRules) -> None:
        """Makes all engines those of another plan, one after the other: each finishes what it has, ends, and starts
        anew, while the others serve. path: where the plan lies.

        Raises ApplianceError with the reason when one does not start, or fails its check, or all take too long; then
        those that had the other plan go back to the one before.
        """
        if self._group is not None:
            raise ApplianceError("replicas that have experts among them start together, which needs a new server")
        before = {number: (self._plan, each.plan_path) for number, each in self._supervisors.items()}
        done: list[int] = []
        try:
            async with asyncio.timeout(rules.within_s):
                for number in self._by_readiness():
                    await self._others_are_there(number)
                    done.append(number)
                    await self._replace(number, plan, path, rules.check)
        except BaseException as failure:
            for number in done:
                await self._go_back(number, *before[number])
            if isinstance(failure, TimeoutError):
                raise ApplianceError(f"not all engines were replaced within {rules.within_s:g} s") from failure
            raise
        self._plan = plan

    def _by_readiness(self) -> list[int]:
        """Those that serve nobody now come first."""
        return sorted(self._supervisors, key=lambda number: self._supervisors[number].health.is_ready)

    async def _others_are_there(self, number: int) -> None:
        """Waits until all others serve, but those that do not come back by themselves."""
        others = [each for other, each in self._supervisors.items() if other != number]
        while not all(each.health.state in (EngineState.READY, EngineState.FAILED) for each in others):
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _replace(self, number: int, plan: EnginePlan, path: Path, check: Check | None) -> None:
        if self._is_ending:
            raise ApplianceError("the server is shutting down")
        replica, before = self._replicas[number], self._supervisors[number]
        before.drain(REPLACED)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.serving.shutdown_timeout_s):
                while replica.client.num_open_requests:
                    await asyncio.sleep(_LOOK_EVERY_S)
        replica.client.fail_all(REPLACED.reason)
        await before.stop()
        replica.is_held = check is not None
        after = self._supervisors[number] = self._supervisor(number, path, plan)
        replica.use_plan(plan)
        after.start()
        if (health := await after.settled()).state is EngineState.FAILED:
            raise ApplianceError(f"engine {number} did not start: {health.reason}")
        if check is not None:
            await check(after.endpoint, after.health)
        replica.is_held = False

    async def _go_back(self, number: int, plan: EnginePlan, path: Path) -> None:
        try:
            await self._replace(number, plan, path, None)
        except ApplianceError as error:
            _log.error("an engine did not come back", extra=fields(engine=number, reason=str(error)))

    def drain(self) -> None:
        """No new requests from now on; open ones go on."""
        self._is_ending = True
        for each in self._supervisors.values():
            each.drain()

    async def stop(self) -> None:
        """Ends the engines. What is still open fails."""
        self._is_ending = True
        await asyncio.gather(*(each.stop() for each in self._supervisors.values()))
        if self._group is not None:
            self._group.close()

    def _lose_others(self, number: int, reason: str) -> None:
        self._supervisors[number].lose_others(reason)

    def _client(self, number: int) -> EngineClient:
        limits = AdmissionLimits(self._plan.scheduler.max_num_seqs, None)  # who waits is counted over all
        return EngineClient(limits, self._metrics.of_engine(number))

    def _supervisor(self, number: int, path: Path, plan: EnginePlan, first: SpawnedEngine | None = None) -> Supervisor:
        return Supervisor(
            plan,
            EnginePaths(path, self._paths.sockets),
            self._replicas[number].client,
            metrics=self._metrics.of_engine(number),
            listener=partial(self._heard, number),
            command=self._command,
            first=first,
            replica=number,
            group=self._group,
            should_pause=partial(self._should_pause, number),
        )

    def _should_pause(self, number: int) -> bool:
        """Returns whether an engine that is back is to be paused: as the others are, or as it was if there are none."""
        others = [each.health for other, each in self._supervisors.items() if other != number]
        there = [each for each in others if each.is_ready]
        return any(each.is_paused for each in there) if there else self._supervisors[number].health.is_paused

    def _heard(self, number: int, event: EngineEvent | Health) -> None:
        replica = self._replicas[number]
        if isinstance(event, Health) and not event.is_ready:
            replica.forget()
            self.client.weights.is_gone(replica)
        elif isinstance(event, Health) and replica.is_outdated:
            self._begin_renewal(replica)
        self._listener(number, event)

    def _begin_renewal(self, replica: Replica) -> None:
        number = replica.number
        self._renewals[number] = asyncio.create_task(self._renew(number), name=f"weights of engine {number}")

    async def _renew(self, number: int) -> None:
        """Gives an engine that is back the weights of the others. One that cannot take them says why and stays away."""
        try:
            await self.client.weights.renew(self._replicas[number])
        except RequestFailedError as error:
            if self._supervisors[number].health.is_ready:
                self._supervisors[number].give_up(f"it cannot have the weights of the other engines: {error}")


def _group_of(numbers: Sequence[int], when_over: Callable[[int, str], None], num_ranks: int) -> "StepGroup":
    from appliance.service.step_group import StepGroup  # noqa: PLC0415 - it needs numpy, and other servers do not

    return StepGroup(numbers, when_over, num_ranks)
