"""A Serve application of a deployment: engines as replicas, and a front that passes requests to them.

`appliance render --to ray-serve` writes the configuration that names `app`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.extras import import_extra
from appliance.plan.types import EnginePlan
from appliance.ray.calls import AnswerHead, HttpCall, NamedAnswer, answer
from appliance.ray.front import ServeFront
from appliance.ray.host import Host, engine_host
from appliance.ray.node import NodeWork
from appliance.service.health import EngineState

FRONT: Final = "front"
ENGINE: Final = "engine"
KEPT_BY_ONE: Final = frozenset({"batches"})  # APIs of what a server keeps and works off: replicas share no store


class AppArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of the application in a Serve configuration. See NodeWork."""

    spec: str
    file: str
    overrides: tuple[str, ...] = ()
    num_cores: int | None = None
    memory_bytes: int | None = None
    max_body_bytes: int = 8 << 20

    def work(self) -> NodeWork:
        return NodeWork(
            text=self.spec,
            file=self.file,
            overrides=self.overrides,
            num_cores=self.num_cores,
            memory_bytes=self.memory_bytes,
        )


def app(args: dict[str, Any]) -> Any:
    """Returns the Serve application. Raises ApplianceError for arguments that it does not know."""
    serve = import_extra("ray.serve", extra="ray", asked_by="appliance.ray.serve")
    try:
        given = msgspec.convert(args, AppArguments)
    except msgspec.ValidationError as error:
        raise ApplianceError(f"the arguments of the Serve application: {error}") from error
    router = serve.config.RequestRouterConfig(request_router_class="appliance.ray.router.PrefixRouter")
    engine = serve.deployment(EngineReplica).options(name=ENGINE, request_router_config=router)
    front = serve.deployment(ServeFront).options(name=FRONT)
    return front.bind(engine.bind(given.work()), given.max_body_bytes)


class EngineReplica:
    """One engine with its HTTP application. It plans on its own node, for what Ray gives it there."""

    async def __init__(self, work: NodeWork) -> None:  # type: ignore[misc]  # Serve awaits it
        """Returns when the engine takes requests. Raises ApplianceError."""
        serve = import_extra("ray.serve", extra="ray", asked_by="appliance.ray.serve")
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._stack = AsyncExitStack()
        plan = await asyncio.to_thread(work.plan)
        self._host: Host = await self._stack.enter_async_context(engine_host(_of_one_replica(plan)))

    async def answer(self, call: HttpCall, pieces: tuple[bytes, ...] = ()) -> AsyncIterator[AnswerHead | bytes]:
        """Answers a request as the server would: see calls.answer. pieces are for the router."""
        async for piece in answer(self._host.app, call):
            yield piece

    async def whole(self, call: HttpCall) -> NamedAnswer:
        """Answers a request that goes to every replica."""
        pieces = [piece async for piece in answer(self._host.app, call)]
        head = next(piece for piece in pieces if isinstance(piece, AnswerHead))
        return NamedAnswer(self._name, head, b"".join(piece for piece in pieces if isinstance(piece, bytes)))

    def check_health(self) -> None:
        """Raises ApplianceError where the engine will not come back by itself; Serve then replaces this replica."""
        health = self._host.health
        if health.state in (EngineState.FAILED, EngineState.STOPPED):
            raise ApplianceError(f"the engine is {health.state.value}: {health.reason}")

    async def __del__(self) -> None:
        """Ends the engine. Serve waits for the open requests before."""
        await self._stack.aclose()


def _of_one_replica(plan: EnginePlan) -> EnginePlan:
    """Leaves out the routes that need what all replicas share."""
    replace, routes = msgspec.structs.replace, plan.serving.routes
    apis = tuple(name for name in routes.apis if name not in KEPT_BY_ONE)
    return replace(plan, serving=replace(plan.serving, routes=replace(routes, apis=apis)))
