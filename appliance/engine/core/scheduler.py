"""The scheduler: which tokens of which sequences run in the next step, and what a step's result means for them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from appliance.engine.core.admission import Admission
from appliance.engine.core.books import Books
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.draft import StepDraft
from appliance.engine.core.pace import Backlog, Decodes, Pace
from appliance.engine.core.policy import POLICIES
from appliance.engine.core.prefill import PrefillRules
from appliance.engine.core.requests import RequestFactory
from appliance.engine.core.sequence import Request, Sequence, Status
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import (
    STEP_TOKEN_BOUNDS,
    EngineStats,
    ErrorKind,
    FinishReason,
    GenerateRequest,
    RequestTimes,
    SchedulerCaps,
    SequenceOutput,
)
from appliance.engine.refusal import Refusal, RequestKey
from appliance.engine.step import RowError, StepPlan, StepResult

Outputs = dict[bytes, list[SequenceOutput]]  # by client


class Scheduler:
    """Continuous batching over a paged cache. Every change of state happens in add, abort, schedule and commit.

    A step takes all decodes first, then the prompts that run already, then waiting ones. When blocks run out the last
    sequence in policy order is preempted: its blocks are given back and its tokens are computed again later. Only a
    sequence that is not in the step yet is ever preempted.
    """

    def __init__(self, config: SchedulerConfig, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.config = config
        self._clock = clock  # asked when a request comes, starts, has its first token and ends
        self._books = Books(config)
        self.kv = self._books.kv
        self._factory = RequestFactory(config, POLICIES[config.policy])
        self._rules = PrefillRules(config)
        self._admission = Admission(self._books, self._rules)
        self._pace = Pace(config.target_step_s, config.late_share)
        self._decodes = Decodes(0, 0)  # when the last step was scheduled
        self._num_steps = 0
        self._step_tokens = 0
        self._step_sizes = [0] * (len(STEP_TOKEN_BOUNDS) + 1)
        self._prompt_tokens = 0
        self._generation_tokens = 0

    # Intake

    def use(self, caps: SchedulerCaps) -> None:
        """Other limits from now on; what is open stays."""
        self.config = replace(self.config, **msgspec.structs.asdict(caps))
        self._rules.use(self.config)

    @property
    def has_work(self) -> bool:
        return bool(self._books.requests)

    def add(self, client: bytes, message: GenerateRequest, grammar: Grammar | None = None) -> None:
        """Raises Refusal when this request cannot be served; nothing else is affected."""
        books, limit = self._books, self.config.max_waiting
        if (client, message.request_id) in books.requests:
            raise Refusal(ErrorKind.INVALID, "request_id", f"request id {message.request_id!r} is in use")
        waiting = books.num_waiting - len(books.free_rows)  # those that a free row will not take in the next step
        if limit is not None and waiting >= limit:
            raise Refusal(ErrorKind.OVERLOADED, None, f"{waiting} sequences wait; the limit is {limit}")
        request = self._factory.create(client, message, grammar)
        request.queued_at = self._clock()
        books.open(request)
        self._prompt_tokens += len(message.prompt_token_ids)

    def abort(self, keys: Iterable[RequestKey], index: int | None = None) -> Outputs:
        """Ends requests between steps, or one sequence of each. Unknown ones are ignored."""
        outputs: Outputs = {}
        for client, request_id in keys:
            request = self._books.requests.get((client, request_id))
            for sequence in request.sequences if request else ():
                if sequence.status is not Status.FINISHED and index in (None, sequence.index):
                    self._books.finish(sequence)
                    output = SequenceOutput(
                        request_id=request_id,
                        index=sequence.index,
                        finish_reason=FinishReason.ABORT,
                        times=self._times(sequence.request),
                    )
                    outputs.setdefault(client, []).append(output)
        return outputs

    def open_requests(self, client: bytes | None = None) -> list[RequestKey]:
        """The open requests of one client, or of all."""
        return [key for key in self._books.requests if client is None or key[0] == client]

    # A step

    def schedule(self) -> StepPlan | None:
        """The next step; None when nothing is open."""
        if self.config.policy == "priority":
            self._admission.make_way()
        self._decodes = self._count_decodes()
        step = self._pause() or self._step()
        if not step.chunks:
            return None
        self._count(step)
        return step.plan(self._num_steps, self._books.take_freed_rows(), goes_on=self._goes_on(step))

    def _goes_on(self, step: StepDraft) -> bool:
        """Whether every running sequence decodes in it and in the next one, which nothing that waits can join."""
        books = self._books
        is_joined = books.num_waiting > 0 and bool(books.free_rows)
        return step.num_going_on == len(step.chunks) == len(books.running) and not is_joined

    def _step(self) -> StepDraft:
        """All decodes, and as many tokens of prompts as let the step end in time for who reads what they decode."""
        step = StepDraft(self.config.max_num_batched_tokens, self.config.max_num_sampled)
        prefills = self._schedule_decodes(step)
        if self.config.chunked_prefill:
            room = self._pace.prompt_tokens(self._decodes, self._num_alone(prefills))
            step.budget = step.budget if room is None else min(step.budget, room)
        self._schedule_prompts(step, prefills)
        return step

    def _pause(self) -> StepDraft | None:
        """Prompts alone, while decodes wait; None when decodes should run, or no prompt can."""
        prefills = [sequence for sequence in self._books.running if not sequence.is_stored]
        if not self.config.chunked_prefill or not (prefills or self._books.num_waiting):
            self._pace.end_pause()
            return None
        room = self._pace.pause(self._decodes, self._backlog(prefills))
        if room is None:
            return None
        step = StepDraft(min(room, self.config.max_num_batched_tokens), self.config.max_num_sampled)
        self._schedule_prompts(step, prefills)
        if step.chunks:
            return step
        self._pace.end_pause()
        return None

    def _count_decodes(self) -> Decodes:
        stored = [sequence for sequence in self._books.running if sequence.is_stored]
        return Decodes(len(stored), sum(sequence.is_streamed for sequence in stored))

    def _schedule_prompts(self, step: StepDraft, prefills: list[Sequence]) -> None:
        """Goes on with prompts that run already, and begins others."""
        self._schedule_prefills(step, prefills)
        self._register(step)
        self._admission.admit(step, prefills)

    def _count(self, step: StepDraft) -> None:
        self._num_steps += 1
        self._step_tokens += step.num_tokens
        self._step_sizes[bisect_left(STEP_TOKEN_BOUNDS, step.num_tokens)] += 1
        now = self._clock() if step.new_rows else 0.0
        for new in step.new_rows:
            sequence = self._books.by_row[new.row]
            assert sequence is not None, "rows change hands between steps only"
            if sequence.request.started_at is None:
                sequence.request.started_at = now

    def _schedule_decodes(self, step: StepDraft) -> list[Sequence]:
        """Takes every running sequence whose prompt is done: one token is left to compute, or some more were forced.

        Returns the others, in policy order.
        """
        prefills: list[Sequence] = []
        running, block_size, pool = self._books.running, self.config.block_size, self.kv.pool
        index = 0
        while index < len(running):  # victims leave from the end, never from before `index`
            sequence = running[index]
            index += 1
            length = len(sequence.tokens) - sequence.num_computed
            if length != 1:
                if not sequence.is_stored:
                    prefills.append(sequence)
                    continue
                length = min(length, step.budget)
            if step.budget == 0:
                break
            end = sequence.num_computed + length
            new_blocks: tuple[int, ...] = ()
            if end > len(sequence.block_table) * block_size:
                self.kv.slide(sequence)
                missing = self.kv.missing(sequence, end)
                while pool.num_free < missing and running[-1] is not sequence:
                    self._books.preempt(running[-1])
                if pool.num_free < missing:
                    self._books.preempt(sequence)
                    break
                new_blocks = self.kv.grow(sequence, end)
            is_last = end + 1 >= sequence.stop_length
            if end == len(sequence.block_table) * block_size and not is_last and pool.num_free > len(running):
                self.kv.slide(sequence)
                new_blocks += self.kv.grow(sequence, end + 1)  # ahead, see StepPlan.goes_on
            step.append(sequence, length, new_blocks)
            step.num_going_on += length == 1 and not is_last and end < len(sequence.block_table) * block_size
        return prefills

    def _backlog(self, prefills: list[Sequence]) -> Backlog:
        """Of the waiting ones the first counts with what it has to compute: more would have to be looked for."""
        waiting = [len(sequence.tokens) - sequence.num_computed for sequence in prefills]
        num_awaited = sum(sequence.is_streamed for sequence in prefills)
        head = self._books.head() if self._books.free_rows else None
        if head is not None:
            waiting.append(self._uncached(head))
            num_awaited += self._books.num_waiting_streamed
        return Backlog(num_awaited, sum(waiting), waiting[0] if waiting else 0)

    def _num_alone(self, prefills: list[Sequence]) -> int:
        """Tokens left of the first prompt, where whatever comes next waits for its end; 0 elsewhere."""
        if self._decodes.num or not self._rules.is_one_by_one:
            return 0
        if prefills:
            return len(prefills[0].tokens) - prefills[0].num_computed
        head = self._books.head()
        return 0 if head is None else self._uncached(head)

    def _uncached(self, waiting: Sequence) -> int:
        """Tokens that it would have to compute if it ran now: one at least, for its logits."""
        return max(1, len(waiting.tokens) - len(self._admission.cached_prefix(waiting)) * self.config.block_size)

    def _schedule_prefills(self, step: StepDraft, prefills: list[Sequence]) -> None:
        """Goes on with prompts that run already. Blocks may come from prompts behind them, not from decodes."""
        step.shares = self._rules.shares(len(prefills) + self._books.num_waiting)
        pool = self.kv.pool
        index = 0
        while index < len(prefills):
            sequence = prefills[index]
            index += 1
            length = self._rules.length(sequence, sequence.num_computed, step)
            self.kv.slide(sequence)
            missing = self.kv.missing(sequence, sequence.num_computed + length)
            while missing > pool.num_free and prefills[-1] is not sequence:
                self._books.preempt(prefills.pop())
            if missing > pool.num_free:
                room = (len(sequence.block_table) + pool.num_free) * self.config.block_size
                length = room - sequence.num_computed
            if length > 0:
                step.append(sequence, length, self.kv.grow(sequence, sequence.num_computed + length))
            self._rules.count(sequence, step)

    def _register(self, step: StepDraft) -> None:
        """Offers the blocks that this step fills to the prefix cache. From here on nothing in the step is preempted."""
        if not self.kv.prefix_caching:
            return
        by_row, block_size = self._books.by_row, self.config.block_size
        for chunk in step.chunks:
            sequence = by_row[chunk.row]
            if sequence is not None and sequence.num_computed // block_size > sequence.num_registered:
                self.kv.register(sequence)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Takes in how long a step took; the next ones are sized by it. `plan` must be the last one scheduled."""
        num_decodes = sum(chunk.length == 1 for chunk in plan.chunks)
        self._pace.learn(Decodes(num_decodes, self._decodes.num_read), plan.num_tokens - num_decodes, seconds)

    # A result

    def commit(self, plan: StepPlan, result: StepResult) -> Outputs:
        """Takes over a step's result. `plan` must be the last one scheduled."""
        outputs: Outputs = {}
        tokens = iter(result.token_ids)
        for chunk in plan.chunks:
            token = next(tokens) if chunk.sample else None
            sequence = self._books.by_row[chunk.row]
            assert sequence is not None, "rows change hands between steps only"
            if chunk.row in result.errors:
                output = self._fail(sequence, result.errors[chunk.row])
            else:
                if chunk.row in result.prompt_logprobs:
                    sequence.prompt_logprobs += result.prompt_logprobs[chunk.row]
                if token is None:
                    continue
                output = self._append(sequence, token, result)
            client = sequence.request.client
            if client in outputs:
                outputs[client].append(output)
            else:
                outputs[client] = [output]
        return outputs

    def _append(self, sequence: Sequence, token: int, result: StepResult) -> SequenceOutput:
        first = not sequence.has_output
        tokens, ending = _taken(sequence, token, result)
        logprobs = result.logprobs.get(sequence.row)
        sequence.is_stored = True
        if first and sequence.request.first_token_at is None:
            sequence.request.first_token_at = self._clock()
        self._generation_tokens += len(tokens)
        prompt_logprobs = None
        if sequence.prompt_logprobs_left is not None:
            prompt_logprobs, sequence.prompt_logprobs_left = sequence.prompt_logprobs, None
        reason, stop_token = ending or (None, None)
        if reason is not None:
            self._books.finish(sequence)
        return SequenceOutput(
            request_id=sequence.request.message.request_id,
            index=sequence.index,
            token_ids=tokens,
            logprobs=None if logprobs is None else [logprobs],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens if first else 0,
            finish_reason=reason,
            stop_token_id=stop_token,
            times=None if reason is None else self._times(sequence.request),
        )

    def _fail(self, sequence: Sequence, error: RowError) -> SequenceOutput:
        self._books.finish(sequence, trusted=False)
        return SequenceOutput(
            request_id=sequence.request.message.request_id,
            index=sequence.index,
            finish_reason=FinishReason.ERROR,
            error=error.reason,
            error_kind=error.kind,
            times=self._times(sequence.request),
        )

    def _times(self, request: Request) -> RequestTimes | None:
        """None while another sequence of it goes on."""
        return None if request.key in self._books.requests else request.times(self._clock())

    # Views

    def stats(self, now: float) -> EngineStats:
        decodes = Decodes(len(self._books.running), self._decodes.num_read)
        return EngineStats(
            time=now,
            num_running=len(self._books.running),
            num_waiting=self._books.num_waiting,
            num_blocks_used=self.kv.pool.num_used,
            num_blocks_total=self.kv.pool.num_blocks,
            num_blocks_touched=self.kv.pool.num_touched,
            num_steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=self._admission.prefix_queries,
            prefix_hits=self._admission.prefix_hits,
            num_preemptions=self._books.num_preemptions,
            step_tokens=self._step_tokens,
            step_sizes=tuple(self._step_sizes),
            prompt_tokens_per_s=self._pace.prompt_rate(decodes, self.config.max_num_batched_tokens),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the books do not balance. For tests: it visits everything."""
        self._books.check_invariants()


def _taken(
    sequence: Sequence, token: int, result: StepResult
) -> tuple[list[int], tuple[FinishReason, int | None] | None]:
    """Appends the sampled token and the forced ones, up to one that ends the sequence; also answers why it ends."""
    tokens = [token]
    sequence.tokens.append(token)
    ending = sequence.finish_reason()
    for forced in result.forced.get(sequence.row, ()):
        if ending is not None:
            return tokens, ending
        tokens.append(forced)
        sequence.tokens.append(forced)
        ending = sequence.finish_reason()
    is_open = ending is None or ending[0] is FinishReason.LENGTH
    return tokens, (FinishReason.STOP, None) if is_open and sequence.row in result.completed else ending
