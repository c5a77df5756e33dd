"""The scheduler: which tokens of which sequences run in the next step, and what a step's result means for them."""

import heapq
from bisect import insort
from collections.abc import Iterable

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.draft import StepDraft
from appliance.engine.core.kv_manager import KvManager
from appliance.engine.core.policy import POLICIES
from appliance.engine.core.prefill import PrefillRules
from appliance.engine.core.prefix_cache import HASHERS
from appliance.engine.core.requests import Refusal, RequestFactory
from appliance.engine.core.sequence import Request, RequestKey, Sequence, Status
from appliance.engine.messages import (
    EngineStats,
    ErrorKind,
    FinishReason,
    GenerateRequest,
    SequenceOutput,
    TokenLogprobs,
)
from appliance.engine.step import RowError, StepPlan, StepResult

Outputs = dict[bytes, list[SequenceOutput]]  # by client


class Scheduler:
    """Continuous batching over a paged cache. Every change of state happens in add, abort, schedule and commit.

    Running sequences are kept in policy order. A step takes all decodes first, then the prompts that run already, then
    waiting ones. When blocks run out the last sequence in policy order is preempted: its blocks are given back and its
    tokens are computed again later. Only a sequence that is not in the step yet is ever preempted.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        hasher = HASHERS[config.hash_algorithm]() if config.prefix_caching else None
        self.kv = KvManager(config.num_blocks, config.block_size, hasher)
        self._factory = RequestFactory(config, POLICIES[config.policy])
        self._rules = PrefillRules(config)
        self._requests: dict[RequestKey, Request] = {}
        self._waiting: list[tuple[tuple[float, ...], int, Sequence]] = []  # a heap; ended sequences leave it late
        self._num_waiting = 0
        self._running: list[Sequence] = []  # in policy order
        self._by_row: list[Sequence | None] = [None] * config.max_num_seqs
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._freed_rows: list[int] = []  # not yet told to the runner
        self._num_steps = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_preemptions = 0

    # Intake

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, client: bytes, message: GenerateRequest) -> None:
        """Raises Refusal when this request cannot be served; nothing else is affected."""
        if (client, message.request_id) in self._requests:
            raise Refusal(ErrorKind.INVALID, "request_id", f"request id {message.request_id!r} is in use")
        limit = self.config.max_waiting
        if limit is not None and self._num_waiting >= limit:
            raise Refusal(ErrorKind.OVERLOADED, None, f"{self._num_waiting} sequences wait; the limit is {limit}")
        request = self._factory.create(client, message)
        self._requests[request.key] = request
        self._prompt_tokens += len(message.prompt_token_ids)
        for sequence in request.sequences:
            self._wait(sequence)

    def abort(self, keys: Iterable[RequestKey]) -> Outputs:
        """Ends requests between steps. Unknown ones are ignored."""
        outputs: Outputs = {}
        for key in keys:
            request = self._requests.get(key)
            for sequence in request.sequences if request else ():
                if sequence.status is not Status.FINISHED:
                    output = SequenceOutput(
                        request_id=key[1], index=sequence.index, finish_reason=FinishReason.ABORT
                    )
                    outputs.setdefault(key[0], []).append(output)
                    self._finish(sequence)
        return outputs

    def open_requests(self, client: bytes | None = None) -> list[RequestKey]:
        return [key for key in self._requests if client is None or key[0] == client]

    # A step

    def schedule(self) -> StepPlan | None:
        """The next step; None when nothing can run (then nothing is open, or all that is open was just refused)."""
        self._make_way()
        step = StepDraft(self.config.max_num_batched_tokens, self.config.max_num_sampled)
        prefills = self._schedule_decodes(step)
        self._schedule_prefills(step, prefills)
        if self.kv.prefix_caching:
            for chunk in step.chunks:
                sequence = self._by_row[chunk.row]
                if sequence is not None and sequence.num_computed // self.config.block_size > sequence.num_registered:
                    self.kv.register(sequence)
        self._admit(step, prefills)
        if not step.chunks:
            return None
        self._num_steps += 1
        freed, self._freed_rows = tuple(self._freed_rows), []
        return step.plan(self._num_steps, freed, self.config.max_num_batched_tokens)

    def commit(self, plan: StepPlan, result: StepResult) -> Outputs:
        """Takes over a step's result. `plan` must be the last one scheduled."""
        outputs: Outputs = {}
        tokens = iter(result.token_ids)
        for chunk in plan.chunks:
            token = next(tokens) if chunk.sample else None
            sequence = self._by_row[chunk.row]
            assert sequence is not None, "rows change hands between steps only"
            if chunk.row in result.errors:
                output = self._fail(sequence, result.errors[chunk.row])
            else:
                if chunk.row in result.prompt_logprobs:
                    sequence.prompt_logprobs += result.prompt_logprobs[chunk.row]
                if token is None:
                    continue
                output = self._append(sequence, token, result.logprobs.get(chunk.row))
            client = sequence.request.client
            if client in outputs:
                outputs[client].append(output)
            else:
                outputs[client] = [output]
        return outputs

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> SequenceOutput:
        first = not sequence.has_output
        sequence.tokens.append(token)
        sequence.is_stored = True
        self._generation_tokens += 1
        prompt_logprobs = None
        if sequence.prompt_logprobs_left is not None:
            prompt_logprobs, sequence.prompt_logprobs_left = sequence.prompt_logprobs, None
        reason, stop_token = sequence.finish_reason() or (None, None)
        if reason is not None:
            self._finish(sequence)
        return SequenceOutput(
            request_id=sequence.request.message.request_id,
            index=sequence.index,
            token_ids=[token],
            logprobs=None if logprobs is None else [logprobs],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens if first else 0,
            finish_reason=reason,
            stop_token_id=stop_token,
        )

    def _fail(self, sequence: Sequence, error: RowError) -> SequenceOutput:
        self._finish(sequence, trusted=False)
        return SequenceOutput(
            request_id=sequence.request.message.request_id,
            index=sequence.index,
            finish_reason=FinishReason.ERROR,
            error=error.reason,
            error_kind=error.kind,
        )

    # Passes of a step

    def _make_way(self) -> None:
        """Under the priority policy a waiting sequence displaces running ones of a worse priority."""
        if self.config.policy != "priority":
            return
        while (head := self._head()) is not None and self._running:
            worst = self._running[-1]
            if worst.request.message.priority <= head.request.message.priority:
                return
            prefills = [other for other in self._running if len(other.tokens) - other.num_computed > 1]
            if self._free_rows and self._fits(head, self.kv.cached_prefix(head), self._headroom(prefills)):
                return
            self._preempt(worst)

    def _schedule_decodes(self, step: StepDraft) -> list[Sequence]:
        """Takes every running sequence with one token left to compute. Returns the others, in policy order."""
        prefills: list[Sequence] = []
        running, block_size, pool = self._running, self.config.block_size, self.kv.pool
        index = 0
        while index < len(running):  # victims leave from the end, never from before `index`
            sequence = running[index]
            index += 1
            known = len(sequence.tokens)
            if known - sequence.num_computed != 1:
                prefills.append(sequence)
                continue
            if step.budget == 0:
                break
            new_blocks: tuple[int, ...] = ()
            if known > len(sequence.block_table) * block_size:
                while pool.num_free == 0 and running[-1] is not sequence:
                    self._preempt(running[-1])
                if pool.num_free == 0:
                    self._preempt(sequence)
                    break
                new_blocks = self.kv.grow(sequence, known)
            step.append(sequence, 1, new_blocks)
        return prefills

    def _schedule_prefills(self, step: StepDraft, prefills: list[Sequence]) -> None:
        """Goes on with prompts that run already. Blocks may come from prompts behind them, not from decodes."""
        step.shares = self._rules.shares(len(prefills) + self._num_waiting)
        index = 0
        while index < len(prefills):
            sequence = prefills[index]
            index += 1
            length = self._rules.length(sequence, sequence.num_computed, step)
            missing = self.kv.missing(sequence, sequence.num_computed + length)
            while missing > self.kv.pool.num_free and prefills[-1] is not sequence:
                self._preempt(prefills.pop())
            if missing > self.kv.pool.num_free:
                room = (len(sequence.block_table) + self.kv.pool.num_free) * self.config.block_size
                length = room - sequence.num_computed
            if length > 0:
                step.append(sequence, length, self.kv.grow(sequence, sequence.num_computed + length))
            self._rules.count(sequence, step)

    def _admit(self, step: StepDraft, prefills: list[Sequence]) -> None:
        """Admits waiting sequences in policy order, as long as their known tokens fit in the free blocks."""
        if not self._num_waiting:
            return
        reserved = self._headroom(prefills)
        held: list[Sequence] = []
        while self._free_rows and step.budget > 0 and step.logits > 0 and (head := self._head()) is not None:
            if self._leader_is_busy(head) or self._rules.must_let_pass(head, step):
                held.append(self._pop())
                continue
            admitted = self._fork(head, step, reserved) if self._can_fork(head) else self._start(head, step, reserved)
            if not admitted:
                break
            reserved += self.kv.missing(head, len(head.tokens))
        for sequence in held:
            self._wait(sequence)

    def _start(self, sequence: Sequence, step: StepDraft, reserved: int) -> bool:
        """Admits the head with its longest cached prefix. False when it has to wait, and with it all behind it."""
        wants_prompt_logits = sequence.prompt_logprobs_left is not None
        hits = [] if wants_prompt_logits else self.kv.cached_prefix(sequence)
        num_stored = len(hits) * self.config.block_size
        num_computed = min(num_stored, len(sequence.tokens) - 1)
        length = self._rules.length(sequence, num_computed, step)
        if length == 0 or not self._rules.may_stay_partial(sequence, num_computed + length, step):
            return False
        if not self._fits(sequence, hits, reserved):
            return False
        self._take_row(self._pop())
        self.kv.adopt(sequence, hits)
        self.kv.grow(sequence, num_computed + length)
        if not sequence.has_output and not wants_prompt_logits:
            sequence.num_cached_tokens = num_computed
            self._prefix_queries += sequence.num_prompt
            self._prefix_hits += num_computed
        self._launch(sequence, length, num_stored, step)
        return True

    def _fork(self, sequence: Sequence, step: StepDraft, reserved: int) -> bool:
        """Admits the head on its leader's prompt blocks: only the last prompt token runs, for its logits."""
        if self.kv.pool.num_free < 1 + reserved:
            return False
        self._take_row(self._pop())
        copy = self.kv.fork(sequence.leader, sequence)
        if copy is not None:
            step.block_copies.append(copy)
        sequence.num_cached_tokens = sequence.leader.num_cached_tokens
        self._launch(sequence, 1, sequence.num_prompt, step)
        return True

    def _launch(self, sequence: Sequence, length: int, num_stored: int, step: StepDraft) -> None:
        step.append_row(sequence)
        step.append(sequence, length, tuple(sequence.block_table), num_stored)
        self._rules.count(sequence, step)
        self.kv.register(sequence)

    def _leader_is_busy(self, sequence: Sequence) -> bool:
        """Whether the leader is still to compute the prompt that this sequence will share."""
        leader = sequence.leader
        return leader is not sequence and leader.status is not Status.FINISHED and not leader.has_output

    def _can_fork(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        return (
            leader is not sequence
            and leader.is_stored  # not only scheduled: blocks are copied before a step runs
            and not sequence.has_output
        )

    def _fits(self, sequence: Sequence, hits: list[int], reserved: int) -> bool:
        """Whether all known tokens find blocks, with one left for each running sequence: else a newcomer would soon be
        preempted again."""
        needed = self.kv.blocks_for(len(sequence.tokens)) - len(hits)
        return needed <= self.kv.num_free_after(hits) - reserved - len(self._running)

    def _headroom(self, prefills: list[Sequence]) -> int:
        """Blocks that running prompts still need."""
        return sum(self.kv.missing(sequence, len(sequence.tokens)) for sequence in prefills)

    # State changes

    def _head(self) -> Sequence | None:
        while self._waiting and self._waiting[0][2].status is not Status.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][2] if self._waiting else None

    def _pop(self) -> Sequence:
        self._num_waiting -= 1
        return heapq.heappop(self._waiting)[2]

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self._num_waiting += 1
        heapq.heappush(self._waiting, (sequence.key, sequence.order, sequence))

    def _take_row(self, sequence: Sequence) -> None:
        sequence.row = self._free_rows.pop()
        sequence.status = Status.RUNNING
        self._by_row[sequence.row] = sequence
        insort(self._running, sequence, key=lambda other: other.key)

    def _leave_row(self, sequence: Sequence) -> None:
        self._by_row[sequence.row] = None
        sequence.is_stored = False
        self._free_rows.append(sequence.row)
        self._freed_rows.append(sequence.row)
        sequence.row = -1
        self._running.remove(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._leave_row(sequence)
        self.kv.release(sequence)
        sequence.prompt_logprobs = [None]
        self._num_preemptions += 1
        self._wait(sequence)

    def _finish(self, sequence: Sequence, *, trusted: bool = True) -> None:
        if sequence.status is Status.RUNNING:
            self._leave_row(sequence)
            self.kv.release(sequence, trusted=trusted)
        else:
            self._num_waiting -= 1
        sequence.status = Status.FINISHED
        request = sequence.request
        if all(other.status is Status.FINISHED for other in request.sequences):
            del self._requests[request.key]

    # Views

    def stats(self, now: float) -> EngineStats:
        return EngineStats(
            time=now,
            num_running=len(self._running),
            num_waiting=self._num_waiting,
            num_blocks_used=self.kv.pool.num_used,
            num_blocks_total=self.kv.pool.num_blocks,
            num_steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            num_preemptions=self._num_preemptions,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the books do not balance. For tests: it visits everything."""
        every = [sequence for request in self._requests.values() for sequence in request.sequences]
        running = [sequence for sequence in every if sequence.status is Status.RUNNING]
        waiting = [sequence for sequence in every if sequence.status is Status.WAITING]
        assert sorted(running, key=lambda s: s.key) == self._running, "running differs, or is out of order"
        assert len(waiting) == self._num_waiting, "waiting count differs"
        queued = {id(entry[2]) for entry in self._waiting}
        assert all(id(sequence) in queued for sequence in waiting), "a waiting sequence is in no queue"
        assert all(self._by_row[sequence.row] is sequence for sequence in running), "rows differ"
        assert len(self._free_rows) + len(running) == self.config.max_num_seqs, "a row leaked"
        assert not any(sequence.block_table for sequence in every if sequence.status is not Status.RUNNING)
        assert all(self.kv.missing(sequence, sequence.num_computed) == 0 for sequence in running), "a table is short"
        self.kv.pool.check_invariants(sequence.block_table for sequence in running)
