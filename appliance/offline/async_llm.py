"""AsyncLLM: vLLM's class for requests that come and go, and whose outputs are read as they come."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from appliance.engine.profile import EngineProfile
from appliance.offline import calls
from appliance.offline.arguments import EngineArgs, Overrides, prepare_spec
from appliance.offline.each import default_sampling
from appliance.offline.errors import ClosedError, InvalidRequestError, told
from appliance.offline.metrics import EngineFigure
from appliance.offline.outputs import PoolingRequestOutput, RequestOutput
from appliance.offline.params import LoRARequest, PoolingParams, RequestOutputKind, SamplingParams
from appliance.offline.pooling import check_task, own_tasks, pool
from appliance.offline.prompts import Prompt, read_prompt
from appliance.offline.session import Session, close_apart
from appliance.offline.tokenizer import OfflineTokenizer
from appliance.offline.wishes import Wish
from appliance.plan.types import EnginePlan

T = TypeVar("T")


class AsyncLLM:
    """A model that answers requests of this process, from `from_engine_args` or `from_spec` to `shutdown`.

    The engine has an event loop of its own, so that any loop of the process may read outputs.
    """

    def __init__(self, plan: EnginePlan) -> None:
        """Loads the model of a plan. Raises ApplianceError, ValueError when it cannot start."""
        self._session = Session(plan)
        self._closing = weakref.finalize(self, close_apart, self._session)
        self._open: set[str] = set()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **ignored: Any) -> Self:
        """Plans and loads a model. Raises what LLM raises, and InvalidRequestError for arguments beside those."""
        if ignored:
            raise InvalidRequestError(f"from_engine_args takes no {', '.join(ignored)}")
        with told():
            return cls(engine_args.prepare().plan)

    @classmethod
    def from_spec(cls, spec: str | Path, overrides: Overrides = ()) -> Self:
        """Runs the plan of a spec: see LLM.from_spec."""
        with told():
            return cls(prepare_spec(spec, overrides).plan)

    @property
    def plan(self) -> EnginePlan:
        return self._session.plan

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the answer as it grows, in the form of `output_kind`. A reader that leaves early ends the request.

        Raises InvalidRequestError, also for an id that is open, and RequestFailedError.
        """
        if trace_headers:
            raise InvalidRequestError("trace_headers: requests of this process are not traced", param="trace_headers")
        if request_id in self._open:
            raise InvalidRequestError(f"the request {request_id!r} is open already", param="request_id")
        params = sampling_params or default_sampling(self.plan)
        wish = Wish(
            request_id=request_id, prompt=read_prompt(prompt), params=params, lora=lora_request, priority=priority
        )
        self._open.add(request_id)
        reading = _Reading(params.output_kind)
        running = self._session.thread.start(lambda: self._session.stream(wish, reading.put))
        running.add_done_callback(reading.ended)
        try:
            with told():
                async for output in reading:
                    yield output
        finally:
            running.cancel()
            self._open.discard(request_id)

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yields the numbers of a prompt once, from a model that pools. A reader that is cancelled ends the request.

        Raises InvalidRequestError, RequestFailedError.
        """
        with told():
            check_task(self.plan, "encode", pooling_params.task or next(iter(own_tasks(self.plan)), "embed"))
        given = [read_prompt(prompt)]
        [found] = await self._on_loop(
            lambda: pool(self._session, given, [pooling_params], [lora_request], lambda: None)
        )
        yield replace(found, request_id=request_id)

    async def abort(self, request_id: str) -> None:
        """Ends a request, whose reader gets a last output with the reason abort."""
        await self._on_loop(lambda: self._session.abort(request_id))

    async def get_tokenizer(self) -> OfflineTokenizer:
        return OfflineTokenizer(self._session)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets cached prefixes: see LLM.reset_prefix_cache."""
        return await self._on_loop(
            lambda: calls.reset_prefix_cache(self._session, reset_running_requests, reset_connector)
        )

    async def get_metrics(self) -> list[EngineFigure]:
        """Returns the figures so far: see LLM.get_metrics."""
        return await self._on_loop(lambda: calls.get_metrics(self._session))

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Holds requests back until `resume_generation`, so that weights or adapters can change; returns once none
        runs. New ones wait; open ones end ("abort"), run to their end ("wait") or stand still ("keep").

        clear_cache: cached prefixes are forgotten once no request is open. wait_for_inflight_requests: an older word
        for mode="wait". Raises InvalidRequestError, RequestFailedError.
        """
        chosen = "wait" if wait_for_inflight_requests else mode
        await self._on_loop(lambda: calls.pause(self._session, chosen, clears_cache=clear_cache))

    async def resume_generation(self) -> None:
        """Ends a pause: what waited is answered now."""
        await self._on_loop(lambda: calls.resume(self._session))

    async def is_paused(self) -> bool:
        return await self._on_loop(lambda: calls.is_paused(self._session))

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives memory back, or pauses: see LLM.sleep."""
        await self._on_loop(lambda: calls.sleep(self._session, level, mode))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self._on_loop(lambda: calls.wake_up(self._session, tags))

    async def start_profile(self) -> None:
        await self._on_loop(lambda: calls.start_profile(self._session))

    async def stop_profile(self) -> list[EngineProfile]:
        """Returns what each engine did since `start_profile`."""
        return await self._on_loop(lambda: calls.stop_profile(self._session))

    async def check_health(self) -> None:
        """Raises RequestFailedError, or ClosedError, when the engine takes no requests."""
        await self._on_loop(self._session.check)

    @property
    def is_running(self) -> bool:
        return self._session.thread.is_usable

    def shutdown(self) -> None:
        """Ends the engine; what is open fails. Safe to call twice."""
        if self._closing.detach():
            self._session.close()

    async def _on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with told():
            running = asyncio.wrap_future(self._session.thread.start(make))
            try:
                return await running
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not task.cancelling():  # it was the engine that ended the call, not the caller
                    self._session.thread.check()
                raise


class _Reading:
    """Outputs on their way from the engine's loop to the reader's. A slow reader of whole answers gets the last one."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._is_delta = kind is RequestOutputKind.DELTA
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[RequestOutput | BaseException | None] = asyncio.Queue()

    def put(self, output: RequestOutput) -> None:
        """Called on the engine's loop."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, output)

    def ended(self, running: "Future[None]") -> None:
        """Called after the last `put`, by the engine's thread, or by a reader that leaves and reads no more."""
        failure = ClosedError("the engine was closed") if running.cancelled() else running.exception()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, failure)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        found = await self._queue.get()
        if found is None:
            raise StopAsyncIteration
        if isinstance(found, BaseException):
            raise found
        return found if self._is_delta else self._newest(found)

    def _newest(self, output: RequestOutput) -> RequestOutput:
        while not output.finished and not self._queue.empty():
            following = self._queue.get_nowait()
            if not isinstance(following, RequestOutput):
                self._queue.put_nowait(following)  # the end, after which nothing comes
                break
            output = following
        return output


AsyncLLMEngine = AsyncLLM  # an older name of vLLM
