"""Batches on a cluster: engines as actors, and the runner of batch files here.

The output file of the driver decides what is done, as it does for a batch on one machine: an engine, a node or the
driver may be lost at any moment, and each line still has one answer.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.hardware.granted import granted
from appliance.hardware.ray_cluster import ClusterNode, ask_nodes, driver, on_node
from appliance.jobs.answerer import Answerer, LineReply, asgi_answerer
from appliance.jobs.answering import BatchStoppedError
from appliance.plan.types import EnginePlan
from appliance.ray.node import NodeWork
from appliance.ray.placing import EngineNeeds, place
from appliance.server.process.inproc_api import inproc_api

ASKED_BY: Final = "batch.backend: ray"
MOST_STARTS: Final = 3  # of an engine, after its first
_UNAVAILABLE: Final = 503
_TRIES: Final = 5  # of a line whose engine was lost
_log = logger("service")


class BatchEngine:
    """An actor: an engine and the server's application over it. It plans on its own node."""

    def __init__(self, work: NodeWork) -> None:
        self._work = work
        self._stack = AsyncExitStack()
        self._loading: asyncio.Task[Answerer] | None = None

    async def load(self) -> None:
        """Returns when lines can be answered. Raises what planning and loading raise."""
        self._loading = self._loading or asyncio.create_task(self._load())
        await self._loading

    async def answer(self, path: str, body: bytes) -> LineReply:
        """Answers one line. One that was started again by Ray loads first."""
        await self.load()
        assert self._loading is not None
        return await self._loading.result()(path, body)

    async def _load(self) -> Answerer:
        plan = await asyncio.to_thread(self._work.plan)
        api: ASGIApp = await self._stack.enter_async_context(inproc_api(plan, lambda phase: None))
        return asgi_answerer(api)


class ClusterEngines(NamedTuple):
    """answer: answers a line. plan: of the first engine. num_engines: how many there will be, on num_nodes nodes."""

    answer: Answerer
    plan: EnginePlan
    num_engines: int
    num_nodes: int


@asynccontextmanager
async def cluster_engines(work: NodeWork, num_replicas: int | None) -> AsyncIterator[ClusterEngines]:
    """Places engines on the cluster, and yields when the first one is ready; others join as they are.

    num_replicas: None for as many as have room. Raises NoRoomError, MissingExtraError and ApplianceError.
    """
    with driver(ASKED_BY) as ray:
        nodes = await asyncio.to_thread(ask_nodes, ray)
        plans = {node.id: await asyncio.to_thread(_planned, work, node) for node in nodes}
        needs = {name: plan if isinstance(plan, str) else EngineNeeds.of(plan) for name, plan in plans.items()}
        placed = place(nodes, needs, num_replicas)
        pool = EnginePool(ray, [_start(ray, work, node, needs[node.id]) for node in placed])
        try:
            await pool.first_ready()
            first = plans[placed[0].id]
            assert isinstance(first, EnginePlan), "engines are placed where they can run"
            yield ClusterEngines(pool.answer, first, len(placed), len({node.id for node in placed}))
        finally:
            pool.close()


def _planned(work: NodeWork, node: ClusterNode) -> EnginePlan | str:
    """Plans an engine for a node from here, or says why it cannot run there."""
    try:
        return work.plan_for(granted(node.facts, node.num_cores or None, node.memory_bytes or None))
    except ApplianceError as error:
        return str(error)


def _start(ray: Any, work: NodeWork, node: ClusterNode, needs: EngineNeeds | str) -> Any:
    assert isinstance(needs, EngineNeeds), "engines are placed where they can run"
    actor = ray.remote(BatchEngine).options(
        num_cpus=needs.num_cores,
        memory=needs.memory_bytes,
        num_gpus=needs.num_accelerators,
        max_restarts=MOST_STARTS,
        scheduling_strategy=on_node(ray, node.id),
    )
    return actor.remote(work.for_grant(needs.num_cores, None))


class EnginePool:
    """Gives each line to the engine with the fewest. One that is lost is asked again when Ray has started it anew."""

    def __init__(self, ray: Any, actors: Sequence[Any]) -> None:
        self._ray = ray
        self._actors = list(actors)
        self._open: dict[Any, int] = {}  # of engines that are ready
        self._loading = [asyncio.create_task(self._load(actor), name="batch engine") for actor in actors]

    async def first_ready(self) -> None:
        """Returns when one engine can answer. Raises the reason of the first that could not load, if none can."""
        pending: set[asyncio.Task[None]] = set(self._loading)
        failed: list[BaseException] = []
        while pending and not self._open:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            failed += [error for each in done if (error := each.exception()) is not None]
        if not self._open:
            raise ApplianceError(f"no engine of the cluster could start: {_first_line(failed[0])}")

    async def answer(self, path: str, body: bytes) -> LineReply:
        """Raises BatchStoppedError when no engine is left."""
        for _ in range(_TRIES):
            actor = await self._next()
            self._open[actor] += 1
            try:
                reply: LineReply = await actor.answer.remote(path, body)
            except self._ray.exceptions.RayError as error:
                self._lost(actor, _first_line(error))
                continue
            finally:
                if actor in self._open:
                    self._open[actor] -= 1
            if reply.status != _UNAVAILABLE:
                return reply
            if actor in self._open:
                self._ray.kill(actor, no_restart=False)
                self._lost(actor, "its engine is gone")
        raise BatchStoppedError(
            f"the batch stopped: a line lost its engine {_TRIES} times", hint="the same command goes on"
        )

    def close(self) -> None:
        """Ends all engines."""
        for task in self._loading:
            task.cancel()
        for actor in self._actors:
            self._ray.kill(actor)

    async def _next(self) -> Any:
        """Waits for an engine, and returns the one with the fewest open lines."""
        while not self._open:
            pending = [each for each in self._loading if not each.done()]
            if not pending:
                raise BatchStoppedError("the batch stopped: no engine is left", hint="the same command goes on")
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return min(self._open, key=lambda each: self._open[each])

    async def _load(self, actor: Any) -> None:
        await actor.load.remote()
        self._open[actor] = 0

    def _lost(self, actor: Any, reason: str) -> None:
        """Takes an engine out until it is loaded again, where Ray starts it again."""
        if self._open.pop(actor, None) is not None:
            _log.warning("an engine of the batch is lost", extra=fields(reason=reason))
            self._loading = [each for each in self._loading if not each.done()]
            self._loading.append(asyncio.create_task(self._load(actor), name="batch engine"))


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
