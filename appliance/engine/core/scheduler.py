"""The scheduler: decides which tokens of which sequences run in the next step, and commits the step's result."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from appliance.engine.core.adapter_slots import AdapterSlots, ServedAdapter
from appliance.engine.core.books import Books
from appliance.engine.core.building import StepBuilder
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.counters import Counters
from appliance.engine.core.ordering import AskPolicy, Ordering
from appliance.engine.core.planning import StepPlanner
from appliance.engine.core.policy import POLICIES
from appliance.engine.core.requests import RequestFactory
from appliance.engine.core.results import Fault, Outputs, ResultTaker, plain_fault
from appliance.engine.core.sequence import Status
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import EngineStats, ErrorKind, GenerateRequest, SchedulerCaps
from appliance.engine.refusal import Refusal, RequestKey
from appliance.engine.step import Drafted, DraftWish, RowError, StepPlan, StepResult
from appliance.engine.time_messages import PartSeconds


class Scheduler:
    """Continuous batching over a paged cache. Every change of state happens in add, abort, schedule and commit.

    A step takes all decodes first, then the prompts already running, then waiting ones. When blocks run out, the last
    sequence in policy order is preempted: its blocks are released, and its tokens are computed again later, or what was
    in its blocks comes back from host memory. A sequence that is already in the step being built is never preempted.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        clock: Callable[[], float] = lambda: 0.0,
        fault: Fault = plain_fault,
        ask_policy: AskPolicy | None = None,
    ) -> None:
        """ask_policy: a policy of the operator's own, in place of the planned one."""
        self.config = config
        self._clock = clock  # read when a request arrives, starts, has its first token and ends
        self._books = Books(config)
        self.kv = self._books.kv
        policy = POLICIES[config.policy]
        self._factory = RequestFactory(config, policy)
        self._ordering = None if ask_policy is None else Ordering(self._books, ask_policy, policy)
        self._planner = StepPlanner(self._books, config, self._ordering)
        self._counters = Counters()
        self._speculation = self._planner.speculation
        self._results = ResultTaker(self._books, self._counters, clock, fault, self._speculation)

    # Intake

    def use(self, caps: SchedulerCaps) -> None:
        """Sets other limits from now on; open requests stay."""
        self.config = replace(self.config, **msgspec.structs.asdict(caps))
        self._planner.use(self.config)

    @property
    def holds_requests(self) -> bool:
        """Open requests run no step: only what checks an adapter does."""
        return self._planner.holds_requests

    @holds_requests.setter
    def holds_requests(self, holds: bool) -> None:
        self._planner.holds_requests = holds

    def preempt_all(self) -> None:
        """Returns all that runs to the queue, between steps: it is computed again, and no block is in use."""
        while (sequence := self._books.last_idle()) is not None:
            self._books.preempt(sequence, trusted=False)

    @property
    def adapters(self) -> AdapterSlots:
        return self._books.adapters

    @property
    def has_work(self) -> bool:
        return bool(self._books.requests)

    def add(self, client: bytes, message: GenerateRequest, grammar: Grammar | None = None) -> None:
        """Opens a request. Raises Refusal if it cannot be served; no other request is affected."""
        books = self._books
        if (client, message.request_id) in books.requests:
            raise Refusal(ErrorKind.INVALID, "request_id", f"request id {message.request_id!r} is in use")
        self.check_room()
        request = self._factory.create(
            client, message, grammar, books.adapters.find(message.adapter, message.adapter_scale, message.stacked)
        )
        request.queued_at = self._clock()
        books.open(request)
        self._counters.prompt_tokens += len(message.prompt_token_ids)

    def check_room(self, num_held: int = 0) -> None:
        """Raises Refusal if as many sequences wait as may. num_held: those that are not in the scheduler yet."""
        limit = self.config.max_waiting
        # The next step may start one for each free row.
        waiting = self._books.num_waiting + num_held - len(self._books.free_rows)
        if limit is not None and waiting >= limit:
            raise Refusal(ErrorKind.OVERLOADED, None, f"{waiting} sequences wait; the limit is {limit}")

    def add_check(self, client: bytes, message: GenerateRequest, adapter: ServedAdapter | None) -> None:
        """Opens a request that checks an adapter, or gives what the model says alone. No limit holds it back, and it
        starts before all others. At most one is open at a time."""
        self._books.open(self._factory.create_check(client, message, adapter))

    def abort(self, keys: Iterable[RequestKey], index: int | None = None, error: RowError | None = None) -> Outputs:
        """Ends requests between steps, or only sequence `index` of each. Unknown keys are ignored. error: they fail."""
        return self._end(keys, index, error)

    def end_all(self, reason: str, kind: ErrorKind) -> Outputs:
        """Fails every open sequence with the same reason, between steps, or if no step will end."""
        for sequence in self._books.running:
            sequence.in_flight = 0
        return self._end(self.open_requests(), None, RowError(kind, reason))

    def _end(self, keys: Iterable[RequestKey], index: int | None, error: RowError | None) -> Outputs:
        outputs: Outputs = {}
        for client, request_id in keys:
            request = self._books.requests.get((client, request_id))
            for sequence in request.sequences if request else ():
                if sequence.status is not Status.FINISHED and index in (None, sequence.index):
                    outputs.setdefault(client, []).append(self._results.end(sequence, error))
        return outputs

    def open_requests(self, client: bytes | None = None) -> list[RequestKey]:
        """Returns the open requests of one client, or of all."""
        return [key for key in self._books.requests if client is None or key[0] == client]

    # A step

    def schedule(self, *, goes_on: bool = False) -> StepPlan | None:
        """Returns the next step; None when nothing is open. goes_on: the step after the last one, in which each row
        decodes, runs already: waiting ones join the step behind it."""
        step = self._planner.next_step(self._clock, goes_on=goes_on)
        if not step.chunks:
            return None
        for chunk in step.chunks:
            sequence = self._books.by_row[chunk.row]
            assert sequence is not None, "a step runs running sequences"
            sequence.in_flight += 1
        self._counters.count_step(step.num_tokens)
        self._note_starts(step)
        most_drafts = 0 if self._speculation is None else self._speculation.most_drafts(len(self._books.running))
        freed = self._books.take_freed_rows()
        goes_on, puts = self._goes_on(step), self._books.adapters.take_puts()
        return step.plan(
            self._counters.num_steps,
            freed,
            goes_on=goes_on,
            most_drafts=most_drafts,
            adapter_puts=puts,
            drafts_follow=self._drafts_follow(),
            stores=() if self._books.swap is None else self._books.swap.take_stores(),
        )

    def _drafts_follow(self) -> bool:
        books, speculation = self._books, self._speculation
        return speculation is not None and speculation.decide(books.running, books.mean_output)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Records how long a step took, to size the next ones. `plan` must be the last one scheduled."""
        self._planner.learn(plan, seconds)

    def charge(self, plan: StepPlan, parts: PartSeconds) -> None:
        """Counts what a step took for each request that ran in it. Call it before `commit`."""
        ran = (self._books.by_row[chunk.row] for chunk in plan.chunks)
        for request in {each.request for each in ran if each is not None}:
            request.charge(parts)

    def draft_wish(self) -> DraftWish | None:
        """Returns what a model is to draft before the next step is scheduled; None if nothing."""
        if self._speculation is None or self.holds_requests:
            return None
        return self._speculation.wish(self._books.running)

    def offer(self, wish: DraftWish, drafted: Drafted, seconds: float) -> None:
        """Takes the drafts that were wished for, which took so long. No sequence has changed since."""
        assert self._speculation is not None, "it wished"
        assert self._speculation.models is not None, "it wished"
        models = self._speculation.models
        models.times.learn(wish, drafted, seconds)
        for row in wish.rows:
            sequence = self._books.by_row[row]
            assert sequence is not None, "nothing has changed since"
            sequence.num_read = drafted.read.get(row)
            if row in drafted.drafts:
                sequence.proposals = [*sequence.proposals, models.offered(sequence, drafted.drafts[row])]

    def _goes_on(self, step: StepBuilder) -> bool:
        """Returns whether every running sequence decodes in this step and the next, and no waiting one can join."""
        books = self._books
        is_joined = books.num_waiting > 0 and bool(books.free_rows)
        return step.num_going_on == len(step.chunks) == len(books.running) and not is_joined

    def _note_starts(self, step: StepBuilder) -> None:
        now = self._clock() if step.new_rows else 0.0
        for new in step.new_rows:
            sequence = self._books.by_row[new.row]
            assert sequence is not None, "rows change hands between steps only"
            if sequence.request.started_at is None:
                sequence.request.started_at = now

    # A result

    def commit(self, plan: StepPlan, result: StepResult) -> Outputs:
        """Commits a step's result, and returns the outputs by client. Of several steps that have begun, `plan` must be
        the first."""
        return self._results.take(plan, result)

    # Views

    def stats(self, now: float) -> EngineStats:
        counters, pool = self._counters, self.kv.pool
        return EngineStats(
            time=now,
            num_running=len(self._books.running),
            num_waiting=self._books.num_waiting,
            num_blocks_used=pool.num_used,
            num_blocks_total=pool.num_blocks,
            blocks_used_by_group=tuple(pool.used_by_group),
            num_blocks_touched=pool.num_touched,
            num_snapshots_kept=0 if self.kv.snapshots is None else self.kv.snapshots.num_kept,
            num_steps=counters.num_steps,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queries=self._planner.admission.prefix_queries,
            prefix_hits=self._planner.admission.prefix_hits,
            num_preemptions=self._books.num_preemptions,
            num_policy_faults=0 if self._ordering is None else self._ordering.num_faults,
            step_tokens=counters.step_tokens,
            step_sizes=tuple(counters.step_sizes),
            prompt_tokens_per_s=self._planner.prompt_rate(),
            speculation=None if self._speculation is None else self._speculation.stats(),
            adapters=self.adapters.stats() if self.adapters.num_slots else None,
            swap=None if self._books.swap is None else self._books.swap.stats(),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the books contradict themselves. For tests only: it visits every sequence."""
        self._books.check_invariants()
