"""Builds a step: decodes, running prompts, waiting prompts, and the time that it may last."""

from collections.abc import Callable

from appliance.engine.core.admission import Admission
from appliance.engine.core.books import Books
from appliance.engine.core.building import StepBuilder
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.decoding import DecodeRules
from appliance.engine.core.delay import PromptDelay
from appliance.engine.core.ordering import Ordering
from appliance.engine.core.pace import Backlog, DecodeCount, Pace
from appliance.engine.core.prefill import PrefillRules
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.speculation import Speculation
from appliance.engine.step import StepPlan


class StepPlanner:
    """Builds steps. A step takes all decodes first, then the prompts already running, then waiting ones.

    The measured times of earlier steps decide how many prompt tokens it takes (see Pace).
    """

    def __init__(self, books: Books, config: SchedulerConfig, ordering: Ordering | None = None) -> None:
        """ordering: by a policy of the operator's own; None: sequences keep the key that they were opened with."""
        self._ordering = ordering
        self._pace = Pace(config.target_step_s, config.late_share)
        self._config = config
        self._books = books
        self._kv = books.kv
        self._prefills = PrefillRules(config)
        self.speculation = _speculation(config, self._pace)
        self._decoding = DecodeRules(books, self.speculation, config.num_lanes)
        self.admission = Admission(books, self._prefills)
        self._delay = PromptDelay(config.delay_factor)
        self._admits = True  # whether waiting prompts may start in the step that is built
        self._decodes = DecodeCount(0, 0)  # when the last step was scheduled
        self.holds_requests = False  # only what checks an adapter runs

    def use(self, config: SchedulerConfig) -> None:
        """Sets other limits, from the next step on."""
        self._config = config
        self._prefills.use(config)
        if self.speculation is not None and config.speculation is not None:
            self.speculation.caps = config.speculation

    def next_step(self, clock: Callable[[], float], *, goes_on: bool = False) -> StepBuilder:
        """Returns the next step; it has no chunks when nothing is open. goes_on: it runs already for the rows that
        decode, so no other can join it."""
        self._kv.settle()
        if self.holds_requests:
            return self._checks_alone()
        self._admits = not self._delay.holds_any or self._is_delay_over(clock())
        if goes_on and self._books.running and all(each.has_run_prompt for each in self._books.running):
            return self._decodes_alone()
        if self._books.swap is not None:
            self._books.swap.settle(self._pace.token_s)
        if self._ordering is not None:
            self._ordering.arrange()
        elif self._config.policy == "priority" and self._admits:
            self.admission.make_way()
        self._decodes = self._count_decodes()
        return self._pause() or self._step()

    def _is_delay_over(self, now: float) -> bool:
        """Returns whether the first waiting sequence may start; one that checks an adapter waits for nothing."""
        head, books = self._books.head(), self._books
        if head is None or head.request.is_check:
            return True
        return self._delay.is_over(head.request.queued_at, now, is_any_running=bool(books.running))

    def _step(self) -> StepBuilder:
        """Builds a step of all decodes, and as many prompt tokens as let it end in time for the streams."""
        step = self._begun(self._config.max_num_batched_tokens)
        prefills = self._decoding.schedule(step)
        if self._config.chunked_prefill:
            room = self._pace.prompt_tokens(self._decodes, self._num_alone(prefills))
            step.budget = step.budget if room is None else min(step.budget, room)
        self._schedule_prompts(step, prefills)
        return step

    def _decodes_alone(self) -> StepBuilder:
        self._decodes = self._count_decodes()
        step = self._begun(self._config.max_num_batched_tokens)
        self._decoding.schedule(step)
        self._register(step)
        return step

    def _checks_alone(self) -> StepBuilder:
        """Builds a step with nothing but the check of an adapter; no chunks if there is none. Others are
        preempted where it has no room beside them."""
        books = self._books
        self._decodes = DecodeCount(0, 0)
        while True:
            step = self._begun(self._config.max_num_batched_tokens)
            running = [each for each in books.running if each.request.is_check and not each.in_flight]
            self._schedule_prefills(step, running)
            self._register(step)
            self.admission.admit(step, running, only_checks=True)
            head, victim = books.head(), books.last_idle()
            is_waiting = bool(running) or (head is not None and head.request.is_check)
            if step.chunks or not is_waiting or victim is None or victim.request.is_check:
                return step
            books.preempt(victim)

    def _begun(self, budget: int) -> StepBuilder:
        return StepBuilder(budget, self._config.max_num_sampled, pools_all=self._config.pooling == "all")

    def _pause(self) -> StepBuilder | None:
        """Builds a step of prompts alone while decodes wait; None if decodes should run or no prompt can."""
        running = (sequence for sequence in self._books.running if not sequence.has_run_prompt)
        prefills = [sequence for sequence in running if sequence.num_computed < len(sequence.tokens)]
        if not self._config.chunked_prefill or not (prefills or (self._books.num_waiting and self._admits)):
            self._pace.end_pause()
            return None
        room = self._pace.pause(self._decodes, self._backlog(prefills))
        if room is None:
            return None
        step = self._begun(min(room, self._config.max_num_batched_tokens))
        self._schedule_prompts(step, prefills)
        if step.chunks:
            return step
        self._pace.end_pause()
        return None

    def _count_decodes(self) -> DecodeCount:
        stored = [sequence for sequence in self._books.running if sequence.has_run_prompt]
        return DecodeCount(len(stored), sum(sequence.is_streamed for sequence in stored))

    def _schedule_prompts(self, step: StepBuilder, prefills: list[Sequence]) -> None:
        """Continues the prompts that run already, and admits others."""
        self._schedule_prefills(step, prefills)
        self._register(step)
        if self._admits:
            self.admission.admit(step, prefills)

    def _backlog(self, prefills: list[Sequence]) -> Backlog:
        """Counts only the first waiting sequence: the tokens of others would need a prefix lookup each."""
        waiting = [len(sequence.tokens) - sequence.num_computed for sequence in prefills]
        num_awaited = sum(sequence.is_streamed for sequence in prefills)
        head = self._books.head() if self._books.free_rows and self._admits else None
        if head is not None:
            waiting.append(self._uncached(head))
            num_awaited += self._books.num_waiting_streamed
        return Backlog(num_awaited, sum(waiting), waiting[0] if waiting else 0)

    def _num_alone(self, prefills: list[Sequence]) -> int:
        """Returns the tokens left of the first prompt if all that comes next waits for its end, else 0."""
        if self._decodes.num or self._ordering is not None or not self._prefills.is_one_by_one:
            return 0
        if prefills:
            return len(prefills[0].tokens) - prefills[0].num_computed
        head = self._books.head()
        return 0 if head is None else self._uncached(head)

    def _uncached(self, waiting: Sequence) -> int:
        """Returns the tokens that the sequence would have to compute now; at least one, for its logits."""
        if waiting.swapped is not None:
            return len(waiting.tokens) - waiting.swapped.num_computed
        return max(1, len(waiting.tokens) - self.admission.cached_prefix(waiting).num_blocks * self._config.block_size)

    def _schedule_prefills(self, step: StepBuilder, prefills: list[Sequence]) -> None:
        """Continues the prompts that run already. It may preempt later prompts for blocks, but no decodes."""
        step.shares = self._prefills.shares(len(prefills) + self._books.num_waiting)
        pool = self._kv.pool
        index = 0
        while index < len(prefills):
            sequence = prefills[index]
            index += 1
            length = self._prefills.length(sequence, sequence.num_computed, step)
            self._kv.slide(sequence)
            missing = self._kv.missing(sequence, sequence.num_computed + length)
            while missing > pool.num_free and (victim := _last_idle(prefills[index:])) is not None:
                prefills.remove(victim)
                self._books.preempt(victim)
            if missing > pool.num_free:
                length = self._kv.room(sequence, pool.num_free) - sequence.num_computed
            if length > 0:
                end = sequence.num_computed + length
                states = self._kv.move_states(sequence, end)
                step.append(sequence, length, self._kv.grow(sequence, end), states=states)
            self._prefills.count(sequence, step)

    def _register(self, step: StepBuilder) -> None:
        """Puts the blocks that this step fills into the prefix cache. From here on nothing in the step is preempted."""
        if not self._kv.prefix_caching:
            return
        by_row, block_size = self._books.by_row, self._config.block_size
        for chunk in step.chunks:
            sequence = by_row[chunk.row]
            if sequence is not None and sequence.num_verified // block_size > sequence.num_registered:
                self._kv.register(sequence)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Updates the pace with the seconds of a step. `plan` must be the last one scheduled."""
        num_prompt_tokens = sum(chunk.length for chunk in plan.chunks if not chunk.is_decode)
        self._delay.learn(num_prompt_tokens, seconds)
        num_decodes = sum(chunk.is_decode for chunk in plan.chunks)
        verifies = self.speculation is not None and any(chunk.draft is not None for chunk in plan.chunks)
        self._pace.learn(
            DecodeCount(num_decodes, self._decodes.num_read), num_prompt_tokens, seconds, verifies=verifies
        )
        if verifies and not num_prompt_tokens:
            assert self.speculation is not None, "asked above"
            self.speculation.learn(plan, seconds)

    def prompt_rate(self) -> float:
        """Returns prompt tokens a second beside the sequences that run now; 0 if not known yet."""
        decodes = DecodeCount(len(self._books.running), self._decodes.num_read)
        return self._pace.prompt_rate(decodes, self._config.max_num_batched_tokens)


def _last_idle(prefills: list[Sequence]) -> Sequence | None:
    return next((each for each in reversed(prefills) if not each.in_flight), None)


def _speculation(config: SchedulerConfig, pace: Pace) -> Speculation | None:
    if config.speculation is None:
        return None
    return Speculation(config.speculation, config.max_num_sampled - config.max_num_seqs, pace, config.expert_reads)
