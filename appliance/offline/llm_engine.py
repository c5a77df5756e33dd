"""LLMEngine: vLLM's class for callers that add requests, and ask step by step for what is new."""

import importlib
import queue
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Self

from appliance.engine.profile import EngineProfile
from appliance.offline import calls
from appliance.offline.arguments import EngineArgs
from appliance.offline.errors import ClosedError, InvalidRequestError, told
from appliance.offline.metrics import EngineFigure
from appliance.offline.outputs import PoolingRequestOutput, RequestOutput
from appliance.offline.params import LoRARequest, PoolingParams, RequestOutputKind, SamplingParams
from appliance.offline.pooling import check_task, own_tasks, pool
from appliance.offline.prompts import Given, Prompt, read_prompt
from appliance.offline.session import Session, close_apart
from appliance.offline.tokenizer import OfflineTokenizer
from appliance.offline.wishes import Wish
from appliance.plan.types import EnginePlan

StepOutput = RequestOutput | PoolingRequestOutput


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What callers of vLLM's engine ask of its `model_config`."""

    model: str
    max_model_len: int
    served_model_name: str
    seed: int

    @property
    def hf_config(self) -> Any:
        """Returns transformers' config of the checkpoint, which this needs."""
        return importlib.import_module("transformers").AutoConfig.from_pretrained(self.model)


@dataclass(frozen=True, slots=True)
class ServedConfig:
    """What callers of vLLM's engine ask of its `vllm_config`."""

    model_config: ServedModel


@dataclass(slots=True, eq=False)
class _Open:
    """A request between `add_request` and its last output. `kind`: None of one that pools, which has one output."""

    request_id: str
    kind: RequestOutputKind | None
    running: "Future[None] | None" = None


class LLMEngine:
    """Requests that are added one by one, and whose outputs each `step` returns.

    The engine computes all the time, whether or not anyone asks: a step waits until something is new. Calls are to come
    from one thread at a time.
    """

    def __init__(self, session: Session) -> None:
        """Takes a session that its owner closes."""
        self._session = session
        self._news: queue.SimpleQueue[tuple[_Open, StepOutput | None]] = queue.SimpleQueue()
        self._open: dict[str, _Open] = {}
        self._closing: weakref.finalize[..., Self] | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Plans and loads a model, until `shutdown` or the last reference. Raises what LLM raises."""
        with told():
            session = Session(engine_args.prepare().plan)
        made = cls(session)
        made._closing = weakref.finalize(made, close_apart, session)
        return made

    @property
    def plan(self) -> EnginePlan:
        return self._session.plan

    @property
    def model_config(self) -> ServedModel:
        model = self.plan.model
        return ServedModel(model.path, model.max_model_len, model.served_names[0], model.seed)

    @property
    def vllm_config(self) -> ServedConfig:
        return ServedConfig(self.model_config)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> str:
        """Begins a request. Raises InvalidRequestError for one that is wrong, or whose id is open."""
        if request_id in self._open:
            raise InvalidRequestError(f"the request {request_id!r} is open already", param="request_id")
        given = read_prompt(prompt)
        if isinstance(params, PoolingParams):
            self._open[request_id] = self._pooling(request_id, given, params, lora_request)
        else:
            wish = Wish(request_id=request_id, prompt=given, params=params, lora=lora_request, priority=priority)
            self._open[request_id] = self._generating(wish)
        return request_id

    def step(self) -> list[StepOutput]:
        """Waits until something is new, and returns it: the newest output of each request, or all pieces of one that
        asked for pieces. Empty if no request is open. Raises RequestFailedError of a request, which is open no more."""
        found: list[tuple[_Open, StepOutput]] = []
        while self._open and not (found and self._news.empty()):
            request, output = self._news.get()
            if self._open.get(request.request_id) is not request:
                continue  # it was aborted
            if output is None and found:
                self._news.put((request, None))  # the next step raises it, and nothing that was found is lost
                break
            if output is None:
                self._ended(request)
                continue
            found.append((request, output))
            if output.finished:
                del self._open[request.request_id]
        last = dict(found)
        return [
            output for request, output in found if request.kind is RequestOutputKind.DELTA or last[request] is output
        ]

    def has_unfinished_requests(self) -> bool:
        return bool(self._open)

    def get_num_unfinished_requests(self) -> int:
        return len(self._open)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Ends requests, of which no step says any more. Those that are not open are ignored."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            request = self._open.pop(each, None)
            if request is not None and request.running is not None:
                request.running.cancel()

    def get_tokenizer(self) -> OfflineTokenizer:
        return OfflineTokenizer(self._session)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets cached prefixes: see LLM.reset_prefix_cache."""
        return self._session.run(
            lambda: calls.reset_prefix_cache(self._session, reset_running_requests, reset_connector)
        )

    def get_metrics(self) -> list[EngineFigure]:
        """Returns the figures so far: see LLM.get_metrics."""
        return self._session.run(lambda: calls.get_metrics(self._session))

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives memory back, or pauses: see LLM.sleep."""
        self._session.run(lambda: calls.sleep(self._session, level, mode))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        self._session.run(lambda: calls.wake_up(self._session, tags))

    def start_profile(self) -> None:
        self._session.run(lambda: calls.start_profile(self._session))

    def stop_profile(self) -> list[EngineProfile]:
        """Returns what each engine did since `start_profile`: see LLM.stop_profile."""
        return self._session.run(lambda: calls.stop_profile(self._session))

    def shutdown(self) -> None:
        """Ends an engine that `from_engine_args` made; what is open fails. Safe to call twice."""
        if self._closing is not None and self._closing.detach():
            self._session.close()

    def _generating(self, wish: Wish) -> _Open:
        with told():
            self._session.check_generates()
        request = _Open(wish.request_id, wish.params.output_kind)
        asked = self._session.run(lambda: self._session.wishes.asked(wish))
        put = self._putter(request)
        running = self._session.thread.start(lambda: self._session.stream_asked(asked, put))
        running.add_done_callback(lambda done: asked.close())  # one that was aborted at once did not begin
        return self._begun(request, running)

    def _pooling(self, request_id: str, given: Given, params: PoolingParams, lora: LoRARequest | None) -> _Open:
        with told():
            check_task(self.plan, "encode", params.task or next(iter(own_tasks(self.plan)), "embed"))
        request = _Open(request_id, None)
        session, put = self._session, self._putter(request)

        async def pooled() -> None:
            [found] = await pool(session, [given], [params], [lora], lambda: None)
            put(replace(found, request_id=request_id))

        return self._begun(request, session.thread.start(pooled))

    def _putter(self, request: _Open) -> Any:
        news = self._news  # and not self, which ends when its owner lets go of it
        return lambda output: news.put((request, output))

    def _begun(self, request: _Open, running: "Future[None]") -> _Open:
        news = self._news
        request.running = running
        running.add_done_callback(lambda done: news.put((request, None)))
        return request

    def _ended(self, request: _Open) -> None:
        """Raises what ended a request that has had no last output."""
        del self._open[request.request_id]
        assert request.running is not None
        with told():
            if request.running.cancelled():
                raise ClosedError("the engine was closed")
            request.running.result()
