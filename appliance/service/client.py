"""The engine as the front ends see it: tokenized requests in, streams of text out."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from appliance.base.log import fields, logger
from appliance.engine.adapter_messages import AdapterReport, AdaptersServed
from appliance.engine.extension_messages import ExtensionCall
from appliance.engine.messages import (
    AbortRequest,
    BadMessage,
    EngineEvent,
    EngineStats,
    ErrorKind,
    GenerateRequest,
    OutputBatch,
    UtilityMethod,
    UtilityResult,
)
from appliance.engine.pause_messages import PauseMode
from appliance.engine.profile import EngineProfile
from appliance.engine.sleep_messages import SleepLevel, SleepTag
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.plan.types import AdapterPlan, SchedulerPlan
from appliance.service.calls import EngineCalls
from appliance.service.engine_metrics import EngineMetrics
from appliance.service.errors import RequestFailedError
from appliance.service.intake import STARTING
from appliance.service.link import EngineLink
from appliance.service.neighbours import Neighbours
from appliance.service.open_requests import OpenRequests, RequestGroup
from appliance.service.policy import Meter, OpenPolicy, RequestPolicy
from appliance.service.requests import TextRequest
from appliance.service.streams import OutputStream
from appliance.service.text_side import TextSide

_log = logger("service")


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The number of sequences that may be open at once. max_waiting None: no limit."""

    max_num_seqs: int
    max_waiting: int | None

    @classmethod
    def of(cls, plan: SchedulerPlan) -> Self:
        return cls(plan.max_num_seqs, plan.max_waiting)


class EngineClient:
    """Admits requests and sends them to the engine. It belongs to one event loop.

    The watcher of the engine attaches the link and opens `intake`. `neighbours` are other clients of the same engine.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        metrics: EngineMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: RequestPolicy | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self.stats: EngineStats | None = None
        self.intake = STARTING
        self.adapters: Mapping[str, AdapterReport] = {}  # by name, as the engine has found them
        self.policy = policy or OpenPolicy()
        self.introduces_vocabulary = False  # to an engine at its start, not only before its first constraint
        self._knows_vocabulary = False  # the engine at the other end of the link
        self._text: TextSide | None = None
        self._limits = limits
        self._metrics = metrics
        self._link: EngineLink | None = None
        self._ids = itertools.count()
        self._calls = EngineCalls(self._attached, self._abort)
        self._requests = OpenRequests(limits.max_num_seqs, metrics, clock, neighbours, self._abort)
        self.when_emptied: Callable[[], None] = lambda: None  # is called when the engine has dropped what was cached

    @property
    def num_open_requests(self) -> int:
        return self._requests.num_requests

    @property
    def num_open_sequences(self) -> int:
        return self._requests.num_sequences

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens that wait for a first token, and that the engine is not expected to have cached."""
        return self._requests.num_new_tokens

    @property
    def engines(self) -> "Sequence[EngineClient]":
        """The clients of the engines that can be called: this one."""
        return (self,)

    @property
    def numbered_engines(self) -> "Mapping[int, EngineClient]":
        """The same by their numbers."""
        return {0: self}

    @property
    def is_asleep(self) -> bool:
        """The engine has said that it has no memory for requests."""
        return self.stats is not None and self.stats.sleep is not None and bool(self.stats.sleep.asleep)

    @property
    def text(self) -> TextSide:
        """Returns what `use_text` was given."""
        assert self._text is not None
        return self._text

    def use_text(self, text: TextSide) -> None:
        """Sets the text side, which the first `generate` needs.

        The constructor does not take it, because an engine may load while a tokenizer does.
        """
        self._text = text
        if self.introduces_vocabulary:
            self._introduce_vocabulary()

    def use_limits(self, limits: AdmissionLimits) -> None:
        """Sets the limits of requests from now on."""
        self._limits = limits
        self._requests.use_max_num_seqs(limits.max_num_seqs)

    def attach(self, link: EngineLink | None) -> None:
        """Sets the way to the engine; None: there is no engine now."""
        self._link = link
        self._knows_vocabulary = False
        if self.introduces_vocabulary:
            self._introduce_vocabulary()

    def check_admission(self) -> None:
        """Raises RequestFailedError (unavailable, overloaded) when nothing more can be taken now."""
        if not self.intake.is_open:
            raise self.intake.refusal()
        most, num_open = self._limits.max_waiting, self.num_open_sequences
        waiting = num_open - self._limits.max_num_seqs
        if most is not None and waiting >= most and num_open:
            reason = f"{waiting} sequences wait already, {most} may; try again later"
            raise RequestFailedError(ErrorKind.OVERLOADED, reason)

    def predicted_wait_s(self) -> float:
        """Predicts how long the prompt of a request that comes now would wait (see Outlook)."""
        return self._requests.wait_s(self.stats)

    def note_shed(self) -> None:
        """Counts a request that a policy refused because of its predicted wait."""
        if self._metrics:
            self._metrics.shed()

    def generate(self, *requests: TextRequest, is_streamed: bool = True, meter: Meter | None = None) -> OutputStream:
        """Starts requests whose outputs come in one stream; sequence j of request i has the index i * n + j.

        `is_streamed`: a reader takes the tokens as they come, and the engine keeps its steps short for it.
        `meter`: of requests that the policy has admitted already.

        They end together: one that fails ends the others. Raises RequestFailedError when they are not admitted; later
        failures come from the stream.
        """
        self.check_admission()
        self._attached()
        admitted: Sequence[TextRequest] = requests
        if meter is None:
            admitted, meter = self.policy.admit(requests)
        group, first_index = self.begin(len(admitted), meter), 0
        for request in admitted:
            self.open(request, group, first_index, is_streamed=is_streamed)
            first_index += request.sampling.n
        return group.stream

    def begin(self, num_requests: int, meter: Meter) -> RequestGroup:
        """Returns a group for as many requests, which `open` of this client and of others fills."""
        return self._requests.begin(num_requests, meter)

    def open(
        self, request: TextRequest, group: RequestGroup, first_index: int, *, is_streamed: bool, num_known: int = 0
    ) -> None:
        """Sends an admitted request of a group (see OpenRequests.add). Raises RequestFailedError when there is no
        engine."""
        link, key = self._attached(), format(next(self._ids), "x")
        self._requests.add(key, request, self.text, group, first_index, num_known)
        self._send(link, key, request, is_streamed=is_streamed)

    async def call(self, method: UtilityMethod) -> msgspec.Raw:
        """Makes a utility call: see EngineCalls.call."""
        return await self._calls.call(method)

    async def reset_prefix_cache(self, *, preempts: bool = False) -> bool:
        """Empties the prefix cache: see EngineCalls.reset_prefix_cache."""
        answer = await self._calls.reset_prefix_cache(preempts=preempts)
        self.when_emptied()
        return msgspec.msgpack.decode(answer, type=bool)

    async def pause(self, mode: PauseMode, *, clears_cache: bool) -> None:
        """Has the engine hold requests back: see EngineCalls.pause."""
        await self._calls.pause(mode, clears_cache=clears_cache)
        if clears_cache:
            self.when_emptied()

    async def resume(self) -> None:
        """Lets the engine go on. Raises RequestFailedError when it is gone."""
        await self._calls.call("resume")

    async def start_trace(self) -> None:
        """Starts a trace: see EngineCalls.start_trace."""
        await self._calls.start_trace()

    async def stop_profile(self) -> EngineProfile | None:
        """Ends a profile or a trace, and returns it; None if none ran. Raises like `call`."""
        return msgspec.msgpack.decode(await self.call("stop_profile"), type=EngineProfile | None)

    async def sleep(self, level: SleepLevel) -> msgspec.Raw:
        """Puts the engine to sleep: see EngineCalls.sleep."""
        answer = await self._calls.sleep(level)
        self.when_emptied()
        return answer

    async def wake_up(self, tags: tuple[SleepTag, ...]) -> msgspec.Raw:
        """Wakes the engine: see EngineCalls.wake_up."""
        return await self._calls.wake_up(tags)

    async def call_extension(self, call: ExtensionCall) -> msgspec.Raw:
        """Calls a method of the operator's own: see EngineCalls.call_extension."""
        return await self._calls.call_extension(call)

    async def update_weights(self, update: WeightUpdate) -> WeightStats:
        """Replaces the model's weights: see EngineCalls.update_weights."""
        answer = await self._calls.update_weights(update)
        self.when_emptied()
        return msgspec.msgpack.decode(answer, type=WeightStats)

    async def stage_weights(self, update: WeightUpdate) -> None:
        """Has new weights wait: see EngineCalls.stage_weights."""
        await self._calls.stage_weights(update)

    async def settle_weights(self, *, is_wanted: bool) -> WeightStats:
        """Settles them: see EngineCalls.settle_weights."""
        answer = await self._calls.settle_weights(is_wanted=is_wanted)
        if is_wanted:
            self.when_emptied()
        return msgspec.msgpack.decode(answer, type=WeightStats)

    async def replace_weights(self, update: WeightUpdate) -> Mapping[int, WeightStats]:
        """Replaces the model's weights on all engines, or on none; returns what each then has. Raises like
        `update_weights`."""
        return {0: await self.update_weights(update)}

    async def change_adapters(self, adapters: tuple[AdapterPlan, ...]) -> None:
        """Changes the set of served adapters: see EngineCalls.change_adapters."""
        await self._calls.change_adapters(adapters)

    async def probe(self) -> None:
        """Sends one token through the scheduler: see EngineCalls.probe."""
        await self._calls.probe()

    def on_event(self, event: EngineEvent) -> None:
        """Takes what concerns requests and calls; other events are the watcher's."""
        match event:
            case OutputBatch():
                if event.stats is not None:
                    self._note(event.stats)
                for output in event.outputs:
                    if not self._calls.probed(output):
                        self._requests.advance(output)
            case AdaptersServed():
                self.adapters = {each.adapter.name: each for each in event.adapters}
                if self._metrics:
                    self._metrics.adapters_found(self.adapters)
            case UtilityResult():
                self._calls.answered(event)
            case BadMessage():
                _log.error("the engine could not read a message", extra=fields(reason=event.error))
            case _:
                return

    def fail_all(self, reason: str) -> None:
        """Fails every open request and call: the engine is gone."""
        self.attach(None)
        self._requests.fail_all(reason)
        self._calls.fail_all(reason)
        self.stats = None
        if self._metrics:
            self._metrics.engine_gone()

    def _introduce_vocabulary(self) -> None:
        """Sends the vocabulary once to each engine, when there is an engine and a text side."""
        if self._link is not None and self._text is not None and not self._knows_vocabulary:
            self._knows_vocabulary = True
            self._link.send(self._text.vocabulary())

    def _send(self, link: EngineLink, key: str, request: TextRequest, *, is_streamed: bool) -> None:
        if request.constraint is not None:
            self._introduce_vocabulary()
        link.send(
            GenerateRequest(
                request_id=key,
                prompt_token_ids=request.prompt_token_ids,
                prompt_embeds=request.prompt_embeds,
                sampling=request.sampling,
                constraint=request.constraint,
                eos_token_ids=self.text.eos_token_ids,
                priority=request.priority,
                cache_salt=request.cache_salt,
                arrival_time=time.time(),
                second_segment=request.second_segment,
                is_streamed=is_streamed,
                adapter=request.adapter,
                adapter_scale=request.adapter_scale,
                stacked=request.stacked,
            )
        )

    def _attached(self) -> EngineLink:
        """Returns the way to the engine. Raises RequestFailedError when there is none."""
        if self._link is None:
            raise self.intake.refusal()
        return self._link

    def _abort(self, keys: list[str], index: int | None = None) -> None:
        if self._link is not None:
            self._link.send(AbortRequest(keys, index))

    def _note(self, stats: EngineStats) -> None:
        self.stats = stats
        if self._metrics:
            self._metrics.note(stats)
