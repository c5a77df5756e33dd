"""A plan that runs: its engines, its text side, and the thread whose event loop they belong to."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from appliance.base.environ import cache_dir
from appliance.engine import given_processors
from appliance.engine.messages import BootPhase
from appliance.offline.adapters import OfflineAdapters
from appliance.offline.answers import Growing
from appliance.offline.errors import InvalidRequestError, told
from appliance.offline.loop_thread import LoopThread
from appliance.offline.outputs import RequestOutput
from appliance.offline.params import RequestOutputKind
from appliance.offline.wishes import ReadyRequest, Wish, WishMaker
from appliance.plan.types import EnginePlan
from appliance.service.local_engines import LocalEngines, local_engines
from appliance.service.metrics import ServiceMetrics
from appliance.service.streams import OutputStream
from appliance.service.text_side import TextSide, load_text_side
from appliance.text.tokenizer import Tokenizer

T = TypeVar("T")


def _ignore(phase: BootPhase) -> None:
    """Ignores the phases of the start."""


class Session:
    """Runs requests from `__init__` to `close`. Methods that are coroutines belong to the session's own loop; `run`
    takes them there."""

    def __init__(self, plan: EnginePlan, announce: Callable[[BootPhase], None] = _ignore) -> None:
        """Returns when the engines are ready. Raises ApplianceError, ValueError when they cannot start."""
        self.thread = LoopThread()
        self._exits = AsyncExitStack()
        self._streams: dict[str, OutputStream] = {}
        self._ids = itertools.count()
        try:
            self.run(lambda: self._open(plan, announce))
        except BaseException:
            self.thread.close()
            raise

    @property
    def plan(self) -> EnginePlan:
        """The plan, with the adapters that are served now."""
        return self.adapters.plan

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    @property
    def text(self) -> TextSide:
        return self._text

    def new_id(self) -> str:
        return str(next(self._ids))

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine of this session to its end. Raises ClosedError, and Python's form of its errors."""
        with told():
            return self.thread.call(make)

    def close(self) -> None:
        """Ends the engines and the thread; what is open fails. Safe to call twice, and in a fork."""
        if self.thread.is_usable:
            try:
                self.thread.call(self._exits.aclose)
            finally:
                self.thread.close()

    async def answers(self, wishes: Sequence[Wish], tick: Callable[[], None]) -> list[RequestOutput]:
        """Answers all in their order, or none: one that is wrong is told before any has begun. tick: one has ended."""
        asked: list[ReadyRequest] = []
        try:
            for wish in wishes:
                asked.append(await self.wishes.asked(wish))
            return await gathered([self._whole(each, tick) for each in asked])
        finally:
            for each in asked:
                each.close()

    def check_generates(self) -> None:
        """Raises InvalidRequestError for a model that pools."""
        if self.plan.model.pooling is not None:
            raise InvalidRequestError("this model pools, and generates no text: it has encode")

    async def stream(self, wish: Wish, put: Callable[[RequestOutput], None]) -> None:
        """Gives `put` the outputs of one request as they come. One that was aborted ends with the reason abort."""
        self.check_generates()
        await self.stream_asked(await self.wishes.asked(wish), put)

    async def stream_asked(self, asked: ReadyRequest, put: Callable[[RequestOutput], None]) -> None:
        """Does what `stream` does for a request that is ready, and closes it."""
        wish, kind = asked.wish, asked.wish.params.output_kind
        growing = Growing(asked.request, asked.prompt, self.tokenizer, wish.lora, kind)
        try:
            with await self._begun(asked, is_streamed=kind is not RequestOutputKind.FINAL_ONLY) as stream:
                self._streams[wish.request_id] = stream
                async for outputs in stream:
                    for output in outputs:
                        growing.add(output)
                    if kind is not RequestOutputKind.FINAL_ONLY or growing.finished:
                        put(growing.shown())
            if not growing.finished:
                growing.abort()
                put(growing.shown())
        finally:
            self._streams.pop(wish.request_id, None)
            asked.close()

    async def abort(self, request_id: str) -> None:
        """Ends a request of `stream`; one that is not open is ignored."""
        if (stream := self._streams.get(request_id)) is not None:
            stream.close()

    async def check(self) -> None:
        """Raises RequestFailedError when the engines take no requests."""
        self.engines.client.check_admission()

    async def call_engines(self, call: Callable[[Any], Coroutine[Any, Any, T]]) -> list[T]:
        """Calls each engine. Raises RequestFailedError."""
        return await asyncio.gather(*(call(each) for each in self.engines.client.engines))

    async def _whole(self, asked: ReadyRequest, tick: Callable[[], None]) -> RequestOutput:
        growing = Growing(asked.request, asked.prompt, self.tokenizer, asked.wish.lora)
        with await self._begun(asked, is_streamed=False) as stream:
            async for outputs in stream:
                for output in outputs:
                    growing.add(output)
        tick()
        return growing.shown()

    async def _begun(self, asked: ReadyRequest, *, is_streamed: bool) -> OutputStream:
        """Sends a request in the same turn of the loop in which its adapter is served: others may take its place."""
        adapter = await self.adapters.name_of(asked.wish.lora)
        return self.engines.client.generate(replace(asked.request, adapter=adapter), is_streamed=is_streamed)

    async def _open(self, plan: EnginePlan, announce: Callable[[BootPhase], None]) -> None:
        self._text = await asyncio.to_thread(load_text_side, plan, cache_dir())
        here = _as_run_here(plan)
        self.wishes = WishMaker(here, self._text.tokenizer)
        self.metrics = metrics = ServiceMetrics(plan.model.served_names[0])
        metrics.describe(plan)
        self.engines: LocalEngines = await self._exits.enter_async_context(
            local_engines(here, self._text, metrics, announce)
        )
        change = self.engines.change_adapters
        self.adapters = OfflineAdapters(plan, lambda changed: change(_as_run_here(changed)))


def close_apart(session: Session) -> None:
    """Closes the session of an object that nobody has any more. Python tells of that in whatever thread drops it or
    collects garbage: one of the session's own would wait for itself, so only the main thread closes at once."""
    if threading.current_thread() is threading.main_thread():
        session.close()
    else:
        threading.Thread(target=session.close, name="appliance-offline-close").start()


async def gathered(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns all results in order; the first failure ends the others, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _as_run_here(plan: EnginePlan) -> EnginePlan:
    """Returns the plan as the engines of this process have it. `max_waiting` keeps strangers from filling a server's
    queue; a caller of this process may give as many prompts as it likes, and waits for all."""
    scheduler = msgspec.structs.replace(plan.scheduler, max_waiting=None)
    own = msgspec.structs.replace(plan, scheduler=scheduler)
    return _with_given_processors(own) if plan.parallel.replicas == 1 else own


def _with_given_processors(plan: EnginePlan) -> EnginePlan:
    """Lets requests name the objects that this process has given, beside what the plan lets them name."""
    planned = plan.model.logits_processor_pattern
    pattern = given_processors.PATTERN if planned is None else f"(?:{planned})|(?:{given_processors.PATTERN})"
    return msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, logits_processor_pattern=pattern))
