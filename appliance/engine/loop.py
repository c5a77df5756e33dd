"""The loop that owns all engine state: intake -> schedule -> execute -> commit -> emit. No sockets, no threads.

The clock and the faults are arguments. The loop's driver (engine process, in-process engine, test) gives it messages
between steps and sends its events while the next step runs.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from appliance.base.log import set_level
from appliance.engine.adapter_changes import CHECKER, AdapterChanges
from appliance.engine.adapter_messages import AdapterSet, AdaptersServed
from appliance.engine.core.results import Outputs, refused_output
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.events import Call, Events, adapter_events, answer, refusal, weight_events
from appliance.engine.extension import AskRanks, called
from appliance.engine.grammar.gate import GrammarGate, closed_gate
from appliance.engine.idle import IdleWork
from appliance.engine.messages import (
    AbortRequest,
    EngineEvent,
    EngineMessage,
    EngineStats,
    ErrorKind,
    GenerateRequest,
    Heartbeat,
    Hello,
    LiveSettings,
    OutputBatch,
    UtilityRequest,
    UtilityResult,
    Vocabulary,
)
from appliance.engine.pausing import SHUT_DOWN, Pausing
from appliance.engine.pulse import Pulse
from appliance.engine.refusal import RequestKey
from appliance.engine.request_intake import Answers, RequestIntake
from appliance.engine.rounds import Rounds
from appliance.engine.runner import Runner
from appliance.engine.sleep import REFUSAL, Sleep
from appliance.engine.step import RowError, StepPlan, StepResult
from appliance.engine.telling import Telling
from appliance.engine.validation import SamplingLimits
from appliance.engine.weight_changes import NO_UPDATES, ChangeProgress, WeightChanges, no_sleep
from appliance.engine.weight_messages import SettleWeights, UpdateWeights
from appliance.engine.wire import raw
from appliance.kernels.watched import Watched

_CLOSED = "the engine is shutting down and takes no new requests"
WAIT_S = 0.005  # between two checks for new messages, while only grammars are compiled, or adapters read

Clock = Callable[[], float]


class EngineLoop:
    """`before_step` is called with each step's number before it runs: tests make it raise, sleep or hang."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: SamplingLimits,
        *,
        grammars: GrammarGate | None = None,
        adapters: AdapterChanges | None = None,
        boot_report: msgspec.Raw | None = None,
        clock: Clock = time.monotonic,
        before_step: Callable[[int], None] | None = None,
        prefault_blocks: int = 0,
        sleep: Sleep | None = None,
        ask_ranks: AskRanks | None = None,
        weights: WeightChanges | None = None,
        collects_parts: bool = False,
        rounds: Rounds | None = None,
    ) -> None:
        self.pulse, self.stopped = Pulse(), False
        self._scheduler, self._runner = scheduler, runner
        self._grammars = closed_gate() if grammars is None else grammars
        self._intake = RequestIntake(scheduler, self._grammars, runner, limits)
        self.boot_report = boot_report if boot_report is not None else raw(None)
        self._clock, self._before_step = clock, before_step
        self._sleep, self._ask_ranks, self._collects_parts = sleep, ask_ranks, collects_parts
        self._adapters, self._weights, self._rounds = adapters, weights, rounds
        self._idle = IdleWork(runner.executable, scheduler.kv.pool, prefault_blocks)
        self._pausing = Pausing(scheduler, self._grammars, self.pulse)
        self._telling = Telling(self._idle, sleep, weights, self._pausing, runner.executable)
        self._ended = 0.0  # when the model's last step ended
        self._begun: deque[tuple[StepPlan, float]] = deque()  # steps in the stages of a pipeline, and when they began
        self._draining: list[Call] | None = None  # to answer once idle

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Has a function called with the reason, from another thread, if what runs the model ends by itself."""
        if isinstance(self._runner.executable, Watched):
            self._runner.executable.watch(when_lost)

    @property
    def has_work(self) -> bool:
        runs = self._scheduler.has_work and not self._pausing.is_frozen
        return runs or self._grammars.has_work or any((self._adapters, self._weights, self._rounds))

    def handle(self, client: bytes, message: EngineMessage) -> Events:
        """Handles one message between steps, and returns the events that answer it, or that it lets be answered."""
        if isinstance(message, GenerateRequest | Vocabulary | Hello):
            events = self._handle(client, message)
        else:
            events = self._end_begun() + self._handle(client, message) + self.drained()
        return events if self._pausing.mode is None else [*events, self._told(client)]  # no step tells what waits

    def _handle(self, client: bytes, message: EngineMessage) -> Events:
        match message:
            case GenerateRequest():
                return self._generate(client, message)
            case AbortRequest():
                return self._abort([(client, request_id) for request_id in message.request_ids], message.index)
            case Vocabulary():
                self._grammars.compiler.use(message)
            case LiveSettings():
                self._use(message)
            case AdapterSet():
                return self._change_adapters(client, message)
            case UpdateWeights() | SettleWeights():
                return self._change_weights(client, message)
            case UtilityRequest():
                return self._utility(client, message)
        return []

    def _use(self, settings: LiveSettings) -> None:
        self._scheduler.use(settings.scheduler)
        self._collects_parts = settings.collects_parts
        self._intake.limits = replace(self._intake.limits, max_n=settings.max_n, max_logprobs=settings.max_logprobs)
        if settings.log_level is not None:
            set_level(settings.log_level)

    def forget_client(self, client: bytes) -> Events:
        """Ends the requests of a client that went away, and returns what steps that have begun give others."""
        events = self._end_begun()
        self._abort(self._intake.open_requests(client))
        return events + self.drained()

    def step(self) -> Events:
        """Runs one step if there is work; with several stages begins one, and ends the first that has begun. An
        exception leaves the loop unusable; then call `fail_all`."""
        laps = self._runner.laps
        laps.begin()
        events = self._answers(self._intake.settled()) if self._grammars else []
        if self._adapters is not None:
            events += adapter_events(self._adapters.advance())
        if self._weights:
            events += self._progressed(self._weights.advance())
        self._draft()
        plan = self._scheduler.schedule(goes_on=self._runner.has_begun)
        if plan is None and not self._begun:
            self._runner.rest()
            if not events:
                self._wait()
            return events
        laps.lap("schedule")
        self.pulse.since = self._clock()
        if plan is not None:
            self.pulse.step = plan.step
            if self._before_step is not None:
                self._before_step(plan.step)
        if self._runner.num_lanes > 1:
            return events + self._step_of_stages(plan)
        assert plan is not None, "without stages no step has begun"
        return events + self._took(plan, self._runner.run(plan), self.pulse.since)

    def _step_of_stages(self, plan: StepPlan | None) -> Events:
        """Begins a step, and ends the first one if as many as there are stages have begun, or no other can begin."""
        if plan is not None:
            self._begun.append((plan, self.pulse.since))
            self._runner.begin(plan)
        if plan is None or len(self._begun) == self._runner.num_lanes:
            return self._end_first()
        self.pulse.since = 0.0
        return []

    def _end_first(self) -> Events:
        plan, began = self._begun.popleft()
        return self._took(plan, self._runner.end(), max(began, self._ended))

    def _end_begun(self) -> Events:
        """Ends all steps that have begun: what comes next changes what they use."""
        events: Events = []
        while self._begun:
            events += self._end_first()
        return events

    def _took(self, plan: StepPlan, result: StepResult, began: float) -> Events:
        """Commits a step, and returns what it gave."""
        began = self._ended if result.began_early else began
        self._ended = self._clock()
        self._scheduler.learn(plan, self._ended - began - result.moved_s)
        if self._collects_parts:
            seconds = self._runner.laps.parts(self._ended - began, has_stages=self._runner.num_lanes > 1)
            self._scheduler.charge(plan, seconds)
        events = self._events(self._scheduler.commit(plan, result))
        self._rest_if_idle()
        self._runner.laps.end(plan)
        self.pulse.since = 0.0
        return events

    def _draft(self) -> None:
        """Lets a model draft, if that was decided when the last step was scheduled; its tokens are on their way."""
        wish = self._scheduler.draft_wish()
        if wish is None:
            return
        self.pulse.since = started = self._clock()
        drafted = self._runner.draft(wish)
        self._scheduler.offer(wish, drafted, self._clock() - started)
        self.pulse.since = 0.0

    def _wait(self) -> None:
        """Takes part in a step of other replicas, or waits a moment for what other threads do for requests, for
        adapters, or for weights."""
        if self._rounds:
            self._rounds.take_part(self.pulse)
        elif self._weights:
            self._weights.wait(WAIT_S)
        elif self._grammars.has_work:
            self._grammars.wait(WAIT_S)
        elif self._adapters:
            self._adapters.wait(WAIT_S)

    def adapters_served(self) -> AdaptersServed:
        """Returns the adapters that are served now."""
        return AdaptersServed() if self._adapters is None else self._adapters.current

    def idle(self) -> bool:
        """Does a small part of the work that is left for idle moments. Returns False when all is done."""
        return not self._is_asleep and self._idle.do_next()

    @property
    def _is_asleep(self) -> bool:
        return self._sleep is not None and self._sleep.is_asleep

    def drained(self) -> Events:
        """Answers the calls that wait for an idle engine, or for one that is paused, once it is."""
        waiting = self._pausing.quiet()
        if self._draining and not self.has_work:
            waiting, self._draining = waiting + self._draining, []
        return [event for call in waiting for event in answer(call, True)]

    def drain(self, *calls: Call) -> Events:
        """Refuses new requests from now on; `drained` answers the calls. Those that a pause holds back fail."""
        self._draining = [*(self._draining or ()), *calls]
        return self._abort(self._pausing.left_over(), error=SHUT_DOWN)

    def fail_all(self, reason: str, kind: ErrorKind) -> Events:
        """Fails every open request with the same reason. Steps that have begun are not waited for."""
        self._begun.clear()
        outputs = self._scheduler.end_all(reason, kind)
        self._intake.end_waiting(self._grammars.keys(), outputs, RowError(kind, reason))
        self._rest_if_idle()
        return self._events(outputs)

    def refuse(self, client: bytes, message: EngineMessage, kind: ErrorKind, reason: str) -> Events:
        """Returns the answer to a message that is not handled, such as one that came too late."""
        if isinstance(message, GenerateRequest):
            return self._answers([(client, refused_output(message.request_id, kind, None, reason))])
        if isinstance(message, UtilityRequest | AdapterSet | UpdateWeights | SettleWeights):
            return refusal((client, message.call_id), reason)
        return []

    def close(self) -> None:
        self._grammars.compiler.close()
        if self._adapters is not None:
            self._adapters.close()
        if self._weights is not None:
            self._weights.close()
        self._runner.close()

    def _change_adapters(self, client: bytes, message: AdapterSet) -> Events:
        """Begins a change; what cannot be is refused at once."""
        reason = "the engine has no places for adapters" if self._adapters is None else self._closed_reason()
        if reason is not None or self._adapters is None:
            return refusal((client, message.call_id), reason or "")
        self._adapters.add(client, message)
        return []

    def _change_weights(self, client: bytes, message: UpdateWeights | SettleWeights) -> Events:
        """Begins or settles a change, as with adapters."""
        reason = NO_UPDATES if self._weights is None else self._closed_reason() or self._pausing.refuses(message)
        if reason is not None or self._weights is None:
            return refusal((client, message.call_id), reason or "")
        return self._progressed(self._weights.take(client, message))

    def _closed_reason(self) -> str | None:
        """Returns why the engine takes nothing new; None if it does."""
        if self._draining is not None:
            return _CLOSED
        return REFUSAL if self._is_asleep else None

    def _progressed(self, progress: ChangeProgress) -> Events:
        released = self._intake.let_in(progress.released)
        events = self._abort(progress.aborted) + weight_events(progress.answers) + self._answers(released)
        return [self._told(client) for client, *_ in progress.answers] + events

    def _generate(self, client: bytes, message: GenerateRequest) -> Events:
        if (reason := self._closed_reason()) is not None:
            return self.refuse(client, message, ErrorKind.UNAVAILABLE, reason)
        return self._answers(self._intake.let_in([(client, message)]))

    def _answers(self, answers: Answers) -> Events:
        """Returns the answers to requests that were refused."""
        return [event for client, each in answers for event in self._events({client: [each]})]

    def _abort(self, keys: list[RequestKey], index: int | None = None, error: RowError | None = None) -> Events:
        """Ends requests, or one sequence of each."""
        outputs = self._intake.end(keys, index, error)
        self._rest_if_idle()
        return self._events(outputs)

    def _rest_if_idle(self) -> None:
        """Cancels a step that began early if no request is open."""
        if not self._scheduler.has_work:
            self._runner.rest()

    def _utility(self, client: bytes, message: UtilityRequest) -> Events:
        value: object = True
        match message.method:
            case "boot_report":
                return [(client, UtilityResult(call_id=message.call_id, value=self.boot_report))]
            case "stats":
                value = self._stats()
            case "reset_prefix_cache":
                if message.preempts:
                    self._runner.rest()
                    self._scheduler.preempt_all()
                value = self._scheduler.kv.reset()
            case "drain":
                return self.drain((client, message.call_id))
            case "pause":
                return self._pause(client, message)
            case "resume":
                return self._resume(client, message)
            case "shutdown":
                self.stopped = True
            case "start_profile":
                self._runner.start_profile(traced=message.traced)
            case "stop_profile":
                value = self._runner.stop_profile()
            case "call_extension":
                self._runner.rest()
                return [(client, called(self._ask_ranks, message))]
            case "sleep" | "wake_up":
                return self._change_sleep(client, message)
        return answer((client, message.call_id), value)

    def _pause(self, client: bytes, message: UtilityRequest) -> Events:
        """Holds requests back from now on; `drained` answers."""
        call = client, message.call_id
        if self._draining is not None:
            return refusal(call, _CLOSED)
        events = self._abort(self._pausing.begin(call, message.mode, clears_cache=message.clears_cache))
        self._runner.rest()
        return events + self._told_of_pause(client)

    def _resume(self, client: bytes, message: UtilityRequest) -> Events:
        events = self._answers(self._intake.let_in(self._pausing.end()))
        return events + self._told_of_pause(client) + answer((client, message.call_id), True)

    def _told_of_pause(self, client: bytes) -> Events:
        """Returns the statistics for a client, and a heartbeat for all, so that all know it before the answer comes."""
        return [self._told(client), (None, Heartbeat(self._clock(), self.pulse.step, 0.0, self.pulse.is_paused))]

    def _change_sleep(self, client: bytes, message: UtilityRequest) -> Events:
        """Puts the engine to sleep, for which open requests are aborted, or wakes it."""
        if self._sleep is None or (reason := no_sleep(message, self._weights)) is not None:
            reason = "the engine cannot sleep" if self._sleep is None else reason
            return refusal((client, message.call_id), reason or "")
        events: Events = []
        if message.method == "sleep" and not self._is_asleep:
            events += self._abort(self._intake.open_requests())
            self._scheduler.kv.reset(gives_back=True)
        if (failure := self._sleep.change(message)) is not None:
            return events + refusal((client, message.call_id), failure)
        return [*events, self._told(client), *answer((client, message.call_id), self._sleep.stats)]

    def _told(self, client: bytes) -> tuple[bytes | None, EngineEvent]:
        """Returns the statistics for a client that hears of them by no step."""
        return client, OutputBatch([], self._stats())

    def _stats(self) -> EngineStats:
        return self._telling.added_to(self._scheduler.stats(self._clock()))

    def _events(self, outputs: Outputs) -> Events:
        if not outputs:
            return []
        checked = outputs.pop(CHECKER, None)
        stats = self._stats()
        events: Events = [(client, OutputBatch(batch, stats)) for client, batch in outputs.items()]
        if checked is not None and self._adapters is not None:
            events += adapter_events(self._adapters.checked(checked))
        return events
