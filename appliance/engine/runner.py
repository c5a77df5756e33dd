"""Runs steps: keeps the rows, prepares the model's inputs, runs it, samples, and reports."""

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.grammar.masks import GrammarMasks
from appliance.engine.inputs import BatchBuilder, InputBuilder, LogitRows
from appliance.engine.laps import Laps
from appliance.engine.messages import ErrorKind, TokenLogprobs
from appliance.engine.processors import RowProcessors
from appliance.engine.profile import EngineProfile
from appliance.engine.profiler import StepProfiler
from appliance.engine.rows import Rows
from appliance.engine.step import RowError, StepPlan, StepResult
from appliance.kernels.interface import Eager, Executable, Lazy, Screened, StepInputs
from appliance.kernels.logits import Float32Array, Logits
from appliance.kernels.sampling import NO_LOGPROBS, LogprobsMode, SampledBatch, SamplingBatch


class Runner:
    """A row's tokens depend on its own tokens, parameters and seed: draws are numbered by the row's token count."""

    def __init__(
        self,
        executable: Executable,
        config: SchedulerConfig,
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        self.vocab_size = vocab_size
        self.laps = Laps()
        self._executable = executable
        self._eager = executable if isinstance(executable, Eager) else None
        self._early_rows = 0 if self._eager is None else self._eager.early_rows
        self._block_size = config.block_size
        few = executable.few_logits if isinstance(executable, Screened) else None
        most_largest = 0 if few is None else few.most
        num_rows, max_len = config.max_num_seqs, config.max_sequence_len + 1
        self._rows = Rows(num_rows, max_len, config.block_size, vocab_size, most_largest)
        self._inputs = InputBuilder(self._rows, config.block_size, config.max_num_batched_tokens, num_rows, few)
        self._batches = BatchBuilder(self._rows, logprobs_mode)
        self._grammars = GrammarMasks(self._rows)
        self._processors = RowProcessors(self._rows)
        self._is_ahead = False  # the next step was started, if it is the one that is expected

    def run(self, plan: StepPlan) -> StepResult:
        """A row whose logits are unusable is reported in the result; any other failure raises."""
        self._update_rows(plan)
        inputs, wanted, began_early = self._prepare(plan)
        self._grammars.begin(chunk.row for chunk in plan.chunks if chunk.sample)
        self.laps.lap("prepare")
        logits = self._executable.run(inputs)
        self.laps.ran(inputs)
        self._grammars.finish()
        if not len(wanted.rows):
            return StepResult(plan.step, [])
        batch, failed = self._processors.apply(wanted, self._batches.build(wanted), logits)
        self.laps.lap("prepare sampling")
        sampled = self._executable.sample(logits, batch)
        self.laps.lap("sample")
        self._append(wanted, sampled)
        if plan.goes_on and len(plan.chunks) <= self._early_rows and not failed and not sampled.num_failed:
            self._go_ahead()
        result = self._result(plan, wanted, batch, sampled, logits, failed, began_early)
        self.laps.lap("report")
        return result

    def rest(self) -> None:
        """The step that was started, if any, is not to be."""
        self._is_ahead = False
        if self._eager is not None:
            self._eager.cancel()
        self.laps.given_up()

    @property
    def is_lazy(self) -> bool:
        """Whether memory of the cache has to be made resident."""
        return isinstance(self._executable, Lazy)

    def prefault(self, block: int) -> None:
        """See Lazy."""
        assert isinstance(self._executable, Lazy), "asked by is_lazy"
        self._executable.prefault(block)

    def start_profile(self) -> None:
        """From now on until `stop_profile`; one that runs already starts anew."""
        self.laps = StepProfiler(self._executable, self._block_size)

    def stop_profile(self) -> EngineProfile | None:
        """None when none was started."""
        laps, self.laps = self.laps, Laps()
        return laps.finish() if isinstance(laps, StepProfiler) else None

    def close(self) -> None:
        self._grammars.close()
        self._executable.close()

    def _update_rows(self, plan: StepPlan) -> None:
        for row in plan.freed_rows:
            self._rows.drop(row)
            self._processors.drop(row)
            self._grammars.drop(row)
        for new in plan.new_rows:
            self._rows.put(new)
            self._processors.put(new)
            if new.grammar is not None:
                self._grammars.put(new)
        for chunk in plan.chunks:
            if chunk.new_blocks:
                self._rows.add_blocks(chunk.row, chunk.new_blocks)
        if plan.block_copies:
            self._executable.copy_blocks(plan.block_copies)

    def _prepare(self, plan: StepPlan) -> tuple[StepInputs, LogitRows, bool]:
        """The step's inputs, and whether it has begun."""
        began_early, self._is_ahead = self._is_ahead, False
        going_on = self._inputs.go_on(plan)
        if going_on is not None:
            return *going_on, began_early
        self.rest()  # what was started reads arrays that are made anew now
        return *self._inputs.build(plan), False

    def _append(self, wanted: LogitRows, sampled: SampledBatch) -> None:
        rows = wanted.rows[: wanted.num_sampled]
        self._rows.token_ids[rows, self._rows.num_tokens[rows]] = sampled.token_ids[: wanted.num_sampled]
        self._rows.num_tokens[rows] += 1

    def _go_ahead(self) -> None:
        """Starts the step that comes next, if nothing intervenes, before anybody looks at this one's tokens."""
        inputs = self._inputs.ahead()
        if inputs is not None and self._eager is not None:
            self._eager.start(inputs)
            self._is_ahead = True
            self.laps.started()

    def _result(
        self,
        plan: StepPlan,
        wanted: LogitRows,
        batch: SamplingBatch,
        sampled: SampledBatch,
        logits: Logits,
        failed: dict[int, RowError],
        began_early: bool,
    ) -> StepResult:
        count = wanted.num_sampled
        rows, tokens = wanted.rows[:count], sampled.token_ids[:count]
        errors = {}
        if sampled.num_failed:
            for at in np.flatnonzero(tokens < 0).tolist():
                errors[int(rows[at])] = _why_no_token(logits.row(at))
        advance = self._grammars.advance(rows, tokens)
        said = [[token] for token in tokens.tolist()]
        if advance.forced:
            for own, row in zip(said, rows.tolist(), strict=True):
                forced = advance.forced.get(row, [])
                self._rows.append(row, forced)
                own += forced
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        if sampled.logprobs is not None:
            for at in np.flatnonzero(batch.num_logprobs != NO_LOGPROBS).tolist():
                row, entry = int(wanted.rows[at]), _token_logprobs(sampled, at, int(batch.num_logprobs[at]))
                if at < count:
                    logprobs[row] = entry
                else:
                    prompt_logprobs.setdefault(row, []).append(entry)
        for row in rows.tolist() if self._rows.prompt_logprobs else ():
            self._rows.prompt_logprobs.pop(row, None)  # the prompt is behind it
        return StepResult(
            plan.step,
            said,
            logprobs,
            prompt_logprobs,
            errors | advance.errors | failed,
            completed=frozenset(advance.completed),
            began_early=began_early,
        )


def _token_logprobs(sampled: SampledBatch, at: int, count: int) -> TokenLogprobs:
    assert sampled.logprobs is not None
    assert sampled.logprob_ids is not None
    assert sampled.ranks is not None
    ids = sampled.logprob_ids[at, : 1 + count]
    return TokenLogprobs(ids.tolist(), sampled.logprobs[at, : 1 + count].tolist(), int(sampled.ranks[at]))


def _why_no_token(logits: Float32Array) -> RowError:
    if np.isnan(logits).any():
        return RowError(ErrorKind.INTERNAL, "the model gave logits that are not numbers (NaN) for this sequence")
    limits = "the constraint, allowed_token_ids, logit_bias, bad_words and min_tokens"
    return RowError(ErrorKind.INVALID, f"no token may come next: {limits} exclude all")
