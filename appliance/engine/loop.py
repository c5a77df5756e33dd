"""The loop that owns all engine state: intake -> schedule -> execute -> commit -> emit. No sockets, no threads.

The clock and the faults are arguments. The loop's driver (engine process, in-process engine, test) gives it messages
between steps and sends its events while the next step runs.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from appliance.base.log import set_level
from appliance.engine.adapter_changes import CHECKER, AdapterChanges
from appliance.engine.adapter_messages import AdapterSet, AdaptersServed
from appliance.engine.core.results import Outputs, ended_output, refused_output
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.events import Events, adapter_events, weight_events
from appliance.engine.extension import AskRanks, called
from appliance.engine.grammar.gate import GrammarGate, closed_gate
from appliance.engine.idle import IdleWork
from appliance.engine.messages import (
    AbortRequest,
    EngineMessage,
    EngineStats,
    ErrorKind,
    GenerateRequest,
    Hello,
    LiveSettings,
    OutputBatch,
    SequenceOutput,
    UtilityRequest,
    UtilityResult,
    Vocabulary,
)
from appliance.engine.pulse import Pulse
from appliance.engine.refusal import RequestKey
from appliance.engine.request_intake import RequestIntake
from appliance.engine.rounds import Rounds
from appliance.engine.runner import Runner
from appliance.engine.sleep import REFUSAL, Sleep
from appliance.engine.step import RowError, StepPlan, StepResult
from appliance.engine.telling import Telling
from appliance.engine.time_messages import PartSeconds
from appliance.engine.validation import SamplingLimits
from appliance.engine.weight_changes import NO_UPDATES, ChangeProgress, WeightChanges, no_sleep
from appliance.engine.weight_messages import SettleWeights, UpdateWeights
from appliance.engine.wire import raw
from appliance.kernels.errors import ExecutableError
from appliance.kernels.watched import Watched

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
        self._telling = Telling(self._idle, sleep, weights, runner.executable)
        self._ended = 0.0  # when the model's last step ended
        self._begun: deque[tuple[StepPlan, float]] = deque()  # steps in the stages of a pipeline, and when they began
        self._draining: list[tuple[bytes, str]] | None = None  # (client, call id) to answer once idle

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Has a function called with the reason, from another thread, if what runs the model ends by itself."""
        if isinstance(self._runner.executable, Watched):
            self._runner.executable.watch(when_lost)

    @property
    def has_work(self) -> bool:
        waits = self._grammars, self._adapters, self._weights, self._rounds
        return self._scheduler.has_work or any(waits)

    def handle(self, client: bytes, message: EngineMessage) -> Events:
        """Handles one message between steps, and returns the events that answer it."""
        if not isinstance(message, GenerateRequest | Vocabulary | Hello):
            return self._end_begun() + self._handle(client, message)
        return self._handle(client, message)

    def _handle(self, client: bytes, message: EngineMessage) -> Events:
        match message:
            case GenerateRequest():
                return self._generate(client, message)
            case AbortRequest():
                keys = [(client, request_id) for request_id in message.request_ids]
                return self._abort(keys, message.index)
            case Vocabulary():
                self._grammars.compiler.use(message)
                return []
            case LiveSettings():
                self._use(message)
                return []
            case AdapterSet():
                return self._change_adapters(client, message)
            case UpdateWeights() | SettleWeights():
                return self._change_weights(client, message)
            case UtilityRequest():
                return self._utility(client, message)
            case Hello():
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
        self._abort(self._open_requests(client))
        return events

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
            self._scheduler.charge(plan, self._parts(self._ended - began))
        events = self._events(self._scheduler.commit(plan, result))
        self._rest_if_idle()
        self._runner.laps.end(plan)
        self.pulse.since = 0.0
        return events

    def _parts(self, execute_s: float) -> PartSeconds:
        """Returns the parts of the last step. The model's stages are most of a step of several, and no call is it."""
        laps, has_stages = self._runner.laps, self._runner.num_lanes > 1
        return PartSeconds(laps.scheduler_s, execute_s if has_stages else laps.model_s, execute_s)

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
        elif self._grammars:
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
        """Answers the calls that wait for an idle engine, once it is idle."""
        if not self._draining or self.has_work:
            return []
        waiting, self._draining = self._draining, []
        return [(client, UtilityResult(call_id=call_id, value=raw(True))) for client, call_id in waiting]

    def drain(self) -> None:
        """Refuses new requests from now on."""
        if self._draining is None:
            self._draining = []

    def fail_all(self, reason: str, kind: ErrorKind) -> Events:
        """Fails every open request with the same reason. Steps that have begun are not waited for."""
        self._begun.clear()
        outputs = self._scheduler.end_all(reason, kind)
        self._end_waiting(self._grammars.keys(), outputs, RowError(kind, reason))
        self._rest_if_idle()
        return self._events(outputs)

    def refuse(self, client: bytes, message: EngineMessage, kind: ErrorKind, reason: str) -> Events:
        """Returns the answer to a message that came too late to be handled."""
        if isinstance(message, GenerateRequest):
            return self._refused(client, message, kind, reason)
        if isinstance(message, UtilityRequest | AdapterSet | UpdateWeights | SettleWeights):
            return [(client, UtilityResult(call_id=message.call_id, error=reason))]
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
            return [(client, UtilityResult(call_id=message.call_id, error=reason))]
        self._adapters.add(client, message)
        return []

    def _change_weights(self, client: bytes, message: UpdateWeights | SettleWeights) -> Events:
        """Begins or settles a change, as with adapters."""
        reason = NO_UPDATES if self._weights is None else self._closed_reason()
        if reason is not None or self._weights is None:
            return [(client, UtilityResult(call_id=message.call_id, error=reason))]
        return self._progressed(self._weights.take(client, message))

    def _closed_reason(self) -> str | None:
        """Returns why the engine takes nothing new; None if it does."""
        if self._draining is not None:
            return "the engine is shutting down and takes no new requests"
        return REFUSAL if self._is_asleep else None

    def _progressed(self, progress: ChangeProgress) -> Events:
        released = [(client, self._intake.take(client, message)) for client, message in progress.released]
        events = self._abort(progress.aborted) + weight_events(progress.answers) + self._answers(released)
        told: Events = [(client, OutputBatch([], self._stats())) for client, *_ in progress.answers]
        return told + events

    def _generate(self, client: bytes, message: GenerateRequest) -> Events:
        if (reason := self._closed_reason()) is not None:
            return self._refused(client, message, ErrorKind.UNAVAILABLE, reason)
        return self._answers([(client, self._intake.take(client, message))])

    def _answers(self, answers: Iterable[tuple[bytes, SequenceOutput | None]]) -> Events:
        """Returns the answers to requests that were refused; None: that one was not."""
        return [event for client, each in answers if each is not None for event in self._events({client: [each]})]

    def _open_requests(self, client: bytes | None = None) -> list[RequestKey]:
        return self._scheduler.open_requests(client) + self._grammars.keys(client)

    def _abort(self, keys: list[RequestKey], index: int | None = None) -> Events:
        """Ends requests, or one sequence of each; a request that waits for its grammar has no sequences yet."""
        outputs = self._scheduler.abort(keys, index)
        if index is None:
            self._end_waiting(keys, outputs)
        self._rest_if_idle()
        return self._events(outputs)

    def _end_waiting(self, keys: list[RequestKey], outputs: Outputs, error: RowError | None = None) -> None:
        """Ends those of the requests that wait for their grammar, and adds their last outputs to `outputs`."""
        for client, message in self._grammars.remove(keys):
            ended = [ended_output(message.request_id, index, error) for index in range(message.sampling.n)]
            outputs.setdefault(client, []).extend(ended)

    def _rest_if_idle(self) -> None:
        """Cancels a step that began early if no request is open."""
        if not self._scheduler.has_work:
            self._runner.rest()

    def _refused(self, client: bytes, message: GenerateRequest, kind: ErrorKind, reason: str) -> Events:
        return self._events({client: [refused_output(message.request_id, kind, None, reason)]})

    def _utility(self, client: bytes, message: UtilityRequest) -> Events:
        value: object = True
        match message.method:
            case "boot_report":
                return [(client, UtilityResult(call_id=message.call_id, value=self.boot_report))]
            case "stats":
                value = self._stats()
            case "reset_prefix_cache":
                value = self._scheduler.kv.reset()
            case "drain":
                self.drain()
                assert self._draining is not None
                self._draining.append((client, message.call_id))
                return self.drained()
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
        return [(client, UtilityResult(call_id=message.call_id, value=raw(value)))]

    def _change_sleep(self, client: bytes, message: UtilityRequest) -> Events:
        """Puts the engine to sleep, for which open requests are aborted, or wakes it."""
        if self._sleep is None or (reason := no_sleep(message, self._weights)) is not None:
            reason = "the engine cannot sleep" if self._sleep is None else reason
            return [(client, UtilityResult(call_id=message.call_id, error=reason))]
        events: Events = []
        try:
            if message.method == "wake_up":
                self._sleep.wake(message.tags)
            elif not self._is_asleep:
                events += self._abort(self._open_requests())
                self._scheduler.kv.reset(gives_back=True)
                self._sleep.begin(message.level)
        except ExecutableError as error:  # the device has no memory left: it sleeps on
            return [*events, (client, UtilityResult(call_id=message.call_id, error=str(error)))]
        told = (client, OutputBatch([], self._stats()))  # no step will tell it while the engine sleeps
        return [*events, told, (client, UtilityResult(call_id=message.call_id, value=raw(self._sleep.stats)))]

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
