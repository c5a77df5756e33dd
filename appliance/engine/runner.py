"""Runs steps: keeps the rows, prepares the model's inputs, runs it, samples, and reports."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from appliance.base.log import logger
from appliance.engine.adapters import AdapterStore
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.interface import Drafter, ModelDrafter
from appliance.engine.drafting.rows import RowDrafts
from appliance.engine.faults import row_fault
from appliance.engine.filled_slots import FilledSlots
from appliance.engine.grammar.masks import GrammarMasks
from appliance.engine.inputs import InputBuilder, LogitRows
from appliance.engine.laps import Laps
from appliance.engine.messages import ProcessorCall
from appliance.engine.processors import CALL_TIMEOUT_S, RowProcessors
from appliance.engine.profile import EngineProfile
from appliance.engine.profiler import StepProfiler
from appliance.engine.ran import Begun, BegunStep, Ran
from appliance.engine.report import pooled_vectors, row_logprobs
from appliance.engine.rows import Rows
from appliance.engine.sampling import RowSampler, Samples
from appliance.engine.saying import Said, say_single, say_with_drafts
from appliance.engine.step import Drafted, DraftTokens, DraftWish, Moved, NewRow, RowError, StepPlan, StepResult
from appliance.engine.step_trace import StepRecorder
from appliance.engine.swap_memory import swap_of, unloaded_rows
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Eager, Executable, Screened, Staged, StepInputs
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import LogprobsMode, SampledBatch

_log = logger("engine")
T = TypeVar("T")


class Runner:
    """Runs steps. A row's tokens depend only on its tokens, parameters and seed: its token count numbers the draws."""

    def __init__(
        self,
        executable: Executable,
        config: SchedulerConfig,
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        drafters: Sequence[Drafter] = (),
        adapters: AdapterStore | None = None,
        draft_model: ModelDrafter | None = None,
        processors: tuple[ProcessorCall, ...] = (),
        processor_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._slots = FilledSlots(executable, adapters)
        self.vocab_size = vocab_size
        self.laps = Laps()
        self._executable = executable
        self._eager = executable if isinstance(executable, Eager) else None
        begins_early = self._eager is not None and config.async_scheduling
        self._early_rows = self._eager.early_rows if self._eager is not None and begins_early else 0
        self._block_size = config.block_size
        few = executable.few_logits if isinstance(executable, Screened) else None
        most_largest = 0 if few is None else few.most
        num_rows, max_len = config.max_num_seqs, config.max_sequence_len + 1
        self._windows = config.windows
        self._pools = config.pooling is not None
        has_drafts = bool(drafters) or draft_model is not None
        num_masks = config.max_num_sampled - num_rows if has_drafts else 0
        groups = len(config.windows)
        self._rows = Rows(num_rows, max_len, config.block_size, vocab_size, most_largest, groups, num_masks)
        tokens, has_states = config.max_num_batched_tokens, config.num_snapshots is not None
        self._builders = [
            InputBuilder(self._rows, config.block_size, tokens, num_rows, few, config.pooling, has_states=has_states)
            for _ in range(config.num_lanes)
        ]
        self._inputs = self._builders[0]
        self._stages = executable if isinstance(executable, Staged) and config.num_lanes > 1 else None
        self._begun: deque[BegunStep] = deque()
        self._grammars = GrammarMasks(self._rows)
        self.processors = RowProcessors(self._rows, processors, processor_timeout_s)
        self._sampler = RowSampler(executable, self._rows, self.processors, logprobs_mode)
        self._drafts = RowDrafts(drafters, vocab_size, draft_model) if has_drafts else None
        places = (config.num_swap_places, config.num_state_places)
        self.swap = swap_of(executable, *places) if config.num_swap_places else None
        self._is_ahead = False  # the expected next step was started early

    def run(self, plan: StepPlan) -> StepResult:
        """Runs one step. A row that fails while it is put, prepared, masked, sampled or advanced is reported in the
        result; the others are as if it had not been there. Any exception of the executable except StepError is raised
        and ends the engine."""
        moved, failed = self._move(plan)
        return msgspec.structs.replace(self._run(plan, failed), moved=moved)

    def _move(self, plan: StepPlan) -> tuple[Moved | None, dict[int, RowError]]:
        """Moves what the plan stores and loads, in all stages; returns what it took, and the rows that are unloaded."""
        if self.swap is None or not (plan.stores or plan.loads):
            return None, {}
        self.rest()  # a step that began early may write blocks that are moved now
        moved = self.swap.move(plan.stores, plan.loads)
        self.laps.lap("swap")
        return moved, unloaded_rows(moved)

    @property
    def num_lanes(self) -> int:
        """The most steps that may have begun and not ended."""
        return len(self._builders)

    def begin(self, plan: StepPlan) -> None:
        """Begins a step, of rows of which no other step that has begun samples any. Raises like `run`."""
        assert self._stages is not None, "several steps may begin"
        moved, failed = self._move(plan)
        self._inputs = self._builders[plan.step % len(self._builders)]
        self._update_rows(plan, failed)
        self._begun.append(BegunStep(plan, failed, self._run_model(plan, failed, self._stages.begin), moved))

    def end(self) -> StepResult:
        """Ends the first of the steps that have begun. Raises like `run`."""
        assert self._stages is not None, "several steps may begin"
        plan, failed, ran, moved = self._begun.popleft()
        ended: Ran[Logits] | None = None
        if ran is not None:
            ended = Ran(ran.plan, ran.wanted, self._stages.finish(ran.logits), ran.begun)
            self.laps.lap("wait")
        return msgspec.structs.replace(self._ended(plan, ended, failed), moved=moved)

    def _run(self, plan: StepPlan, failed: dict[int, RowError]) -> StepResult:
        """Runs one step, without the rows that have `failed`, to which it adds others."""
        self._update_rows(plan, failed)
        ran = self._run_model(plan, failed, self._executable.run)
        if ran is not None and ran.begun is not None and ran.begun.places is not None:
            ran = Ran(ran.plan, ran.wanted, self._sampler.some(ran.logits, ran.begun.places), ran.begun)
        return self._ended(plan, ran, failed)

    def _ended(self, plan: StepPlan, ran: Ran[Logits] | None, failed: dict[int, RowError]) -> StepResult:
        """Samples the rows of a step that ran, and returns what it gave."""
        if ran is None or not len(ran.wanted.rows):
            return StepResult(plan.step, [[] for chunk in plan.chunks if chunk.sample], errors=failed)
        if self._pools:
            return self._pooled(plan, ran, failed)
        may_go_ahead = plan.goes_on and not plan.drafts_follow and len(plan.chunks) <= self._early_rows and not failed
        wants_drafts = self._drafts is not None and plan.most_drafts > 0
        is_fed = may_go_ahead and not wants_drafts and self._sampler.feeds
        meanwhile = self._feed_ahead if is_fed else None
        samples = self._sampler.sample(ran.wanted, ran.logits, failed, self.laps, meanwhile)
        self.laps.lap("sample")
        if failed or samples.faults:
            may_go_ahead = False
            self.rest()  # a step that was fed has a token of a row that has none
        if ran.wanted.ahead is None:
            self._append(ran.wanted, samples.sampled, failed)
        if may_go_ahead and not wants_drafts and not is_fed:
            self._go_ahead()
        said = self._say(plan, ran, samples, failed)
        drafts = self._propose(plan, said, failed)
        if may_go_ahead and wants_drafts and not drafts:
            self._go_ahead()
        result = self._result(plan, ran, samples, said, drafts, failed)
        self.laps.lap("report")
        return result

    @property
    def has_begun(self) -> bool:
        """The next step runs on a device already, for the rows of the last one: those that go on are to be all of it,
        since to begin another step would cost what was computed of this one."""
        return self._is_ahead and self._sampler.feeds and self._drafts is None

    def draft(self, wish: DraftWish) -> Drafted:
        """Lets the drafting model draft for rows that run. What cannot come next is cut off."""
        assert self._drafts is not None, "only a model drafts on a wish"
        drafted = self._drafts.draft(wish, self._grammars.num_fitting)
        self.laps.lap("draft")
        return drafted

    def rest(self) -> None:
        """Cancels the step that was started early, if any."""
        self._is_ahead = False
        if self._eager is not None:
            self._eager.cancel()
        self.laps.given_up()

    @property
    def executable(self) -> Executable:
        """What runs the model."""
        return self._executable

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Allocated bytes by purpose, beside those of the executable."""
        return {} if self.swap is None else {"swap": self.swap.size_bytes}

    def start_profile(self, *, traced: bool = False) -> None:
        """Profiles from now on until `stop_profile`, or traces steps as well; one that runs already is restarted."""
        recorder = StepRecorder() if traced else None
        self.laps = StepProfiler(self._executable, self._block_size, self._windows, recorder=recorder)

    def stop_profile(self) -> EngineProfile | None:
        """Ends the profile and returns it; None when none was started."""
        laps, self.laps = self.laps, Laps()
        return laps.finish() if isinstance(laps, StepProfiler) else None

    def close(self) -> None:
        self._grammars.close()
        if self._drafts is not None:
            self._drafts.close()
        self._executable.close()

    def _update_rows(self, plan: StepPlan, failed: dict[int, RowError]) -> None:
        """Drops, puts and extends rows. Adds the errors of those that cannot take part in the step to `failed`."""
        for row in plan.freed_rows:
            self._rows.drop(row)
            self.processors.drop(row)
            self._grammars.drop(row)
            if self._drafts is not None:
                self._drafts.drop(row)
        if plan.adapter_puts:
            self.rest()  # a step that began early may read a slot that is written now
            self._slots.put(plan.adapter_puts)
        for new in plan.new_rows:
            try:
                self._slots.check(new.adapter_slot)
                self._put(new)
            except BaseException as error:  # noqa: BLE001 - a panic of a library derives from it; the row alone fails
                failed[new.row] = row_fault("it was put in its row", error)
        for chunk in plan.chunks:
            if chunk.new_blocks:
                try:
                    self._rows.add_blocks(chunk.row, chunk.new_blocks)
                except Exception as error:  # noqa: BLE001 - any exception here concerns this row alone
                    failed[chunk.row] = row_fault("it got its blocks", error)
            if chunk.draft is not None:
                self._rows.put_draft(chunk.row, chunk.draft.token_ids)
        if plan.block_copies:
            self._executable.copy_blocks(plan.block_copies)

    def drop_adapters(self, slots: Iterable[int]) -> None:
        """Empties slots that no running row has, between steps."""
        self.rest()  # a step that began early may read them
        self._slots.drop(slots)

    def _put(self, new: NewRow) -> None:
        self._rows.put(new)
        self.processors.put(new)
        if new.grammar is not None:
            self._grammars.put(new)
        if self._drafts is not None:
            self._drafts.put(new)

    def _run_model(self, plan: StepPlan, failed: dict[int, RowError], run: Callable[[StepInputs], T]) -> Ran[T] | None:
        """Runs the model for the rows that can be prepared, and adds the others to `failed`. None if none can."""
        if failed:
            plan = plan.without(failed)
        while plan.chunks:
            try:
                inputs, wanted, begun = self._prepare(plan)
            except Exception as error:  # noqa: BLE001 - it is raised again if no row is to blame
                plan = self._without_culprits(plan, failed, error, Exception, self._inputs.build)
                continue
            self._grammars.begin(plan.chunks)
            self.laps.lap("prepare")
            try:
                logits = run(inputs)
            except StepError as error:
                self._grammars.finish()
                plan = self._without_culprits(plan, failed, error, StepError, self._run_alone)
                continue
            self.laps.ran(inputs)
            self._grammars.finish()
            if self._drafts is not None:
                self._drafts.observe(plan.chunks, self._executable)
            return Ran(plan, wanted, logits, begun)
        return None

    def _run_alone(self, plan: StepPlan) -> None:
        self._executable.run(self._inputs.build_trial(plan))

    def _without_culprits(
        self,
        plan: StepPlan,
        failed: dict[int, RowError],
        error: Exception,
        kind: type[Exception],
        attempt: Callable[[StepPlan], object],
    ) -> StepPlan:
        """Returns the plan without the rows for which `attempt` alone raises. Raises `error` if there are none."""
        self.rest()
        found: dict[int, RowError] = {}
        for chunk in plan.chunks:
            try:
                attempt(plan.of((chunk,)))
            except kind as own:
                found[chunk.row] = row_fault("its inputs were made", own)
        if not found:
            raise error
        failed.update(found)
        return plan.without(found)

    def _prepare(self, plan: StepPlan) -> tuple[StepInputs, LogitRows, Begun | None]:
        """Returns the step's inputs, and how it has begun already, if it has."""
        is_kept = self.has_begun and not (plan.new_rows or plan.block_copies or plan.adapter_puts)
        began_early, self._is_ahead = self._is_ahead, False
        going_on = self._inputs.go_on(plan)
        if going_on is not None:
            return *going_on, Begun() if began_early else None
        if is_kept and (kept := self._inputs.keep(plan)) is not None:
            inputs, wanted, places = kept
            return inputs, wanted, Begun(places)
        self.rest()  # an early step reads the arrays that are rebuilt now
        return *self._inputs.build(plan), None

    def _pooled(self, plan: StepPlan, ran: Ran[Logits], failed: dict[int, RowError]) -> StepResult:
        vectors, errors = pooled_vectors(ran.wanted, ran.logits)
        self.laps.lap("report")
        return StepResult(
            plan.step, [[] for chunk in plan.chunks if chunk.sample], errors=errors | failed, vectors=vectors
        )

    def _append(self, wanted: LogitRows, sampled: SampledBatch, failed: dict[int, RowError]) -> None:
        rows, tokens = wanted.rows[: wanted.num_sampled], sampled.token_ids[: wanted.num_sampled]
        try:
            self._rows.token_ids[rows, self._rows.num_tokens[rows]] = tokens
        except IndexError:  # a row is full; no count has changed yet
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
                self._append_to(row, [token], failed)
            return
        self._rows.num_tokens[rows] += 1

    def _append_to(self, row: int, tokens: list[int], failed: dict[int, RowError]) -> None:
        try:
            self._rows.append(row, tokens)
        except Exception as error:  # noqa: BLE001 - any exception here concerns this row alone
            failed[row] = row_fault("its tokens were appended", error)

    def _feed_ahead(self) -> None:
        """Starts the expected next step before this one's tokens are known: the device has them."""
        self._go_ahead(is_fed=True)

    def _go_ahead(self, *, is_fed: bool = False) -> None:
        """Starts the expected next step before this one's tokens are committed; an unexpected one cancels it."""
        assert self._eager is not None, "no rows may begin early"
        try:
            inputs = self._inputs.ahead(is_fed=is_fed)
            if inputs is None:
                return
            self._eager.start(inputs)
        except Exception:  # noqa: BLE001 - the step meets it again in its turn, where the row to blame is found
            _log.exception("a step could not begin early")
            self._inputs.give_up()
            self.rest()
            return
        self._is_ahead = True
        self.laps.started()

    def _say(self, plan: StepPlan, ran: Ran[Logits], samples: Samples, failed: dict[int, RowError]) -> Said:
        """Returns what the rows say, appended to them; of each chunk that was to sample, even if its row failed."""
        wanted = ran.wanted
        tokens = samples.sampled.token_ids[: wanted.num_sampled].tolist()
        if wanted.ahead is None:
            said = say_single(wanted, tokens, samples.faults, self._grammars)
        else:
            said = say_with_drafts(self._rows, ran.plan, wanted, tokens, samples.faults, self._grammars)
        is_first_appended = wanted.ahead is None
        for row, own in said.tokens.items():
            if not is_first_appended or len(own) > 1:
                self._append_to(row, own[is_first_appended:], failed)
            if self._drafts is not None and row not in failed:
                self._drafts.say(row, own)
        return said

    def _propose(self, plan: StepPlan, said: Said, failed: dict[int, RowError]) -> dict[int, list[DraftTokens]]:
        """Returns drafts for the next step, of the rows that go on as far as is known here."""
        if self._drafts is None or not plan.most_drafts:
            return {}
        ended = failed.keys() | said.errors.keys() | said.completed
        rows = (row for row in said.tokens if row not in ended)
        return self._drafts.propose(rows, plan.most_drafts, self._grammars.num_fitting)

    def _result(
        self,
        plan: StepPlan,
        ran: Ran[Logits],
        samples: Samples,
        said: Said,
        drafts: dict[int, list[DraftTokens]],
        failed: dict[int, RowError],
    ) -> StepResult:
        counts = {row: len(own) for row, own in said.tokens.items()}
        logprobs = row_logprobs(ran.wanted, samples.batch, samples.sampled, counts, failed)
        for row in said.tokens if self._rows.prompt_logprobs else ():
            self._rows.prompt_logprobs.pop(row, None)  # its prompt has run
        return StepResult(
            plan.step,
            [[] if chunk.row in failed else said.tokens[chunk.row] for chunk in plan.chunks if chunk.sample],
            logprobs.sampled,
            logprobs.prompt,
            said.errors | failed,
            drafts=drafts,
            completed=said.completed,
            began_early=ran.begun is not None,
        )
