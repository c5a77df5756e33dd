"""Commits a step's result: appends tokens, ends sequences, and makes the outputs for their clients."""

from collections.abc import Callable

from appliance.engine.core.books import Books
from appliance.engine.core.counters import Counters
from appliance.engine.core.sequence import Request, Sequence, Status
from appliance.engine.core.speculation import Speculation
from appliance.engine.messages import DraftCounts, ErrorKind, FinishReason, SequenceOutput
from appliance.engine.step import DraftTokens, RowError, StepPlan, StepResult
from appliance.engine.time_messages import RequestTimes

Fault = Callable[[str, BaseException], RowError]  # (what was done, what was raised)
Outputs = dict[bytes, list[SequenceOutput]]  # by client


class ResultTaker:
    """Appends tokens to sequences, ends those that are complete or failed, and makes the outputs.

    `fault` gives the error of a sequence that met an exception while its tokens were committed.
    """

    def __init__(
        self,
        books: Books,
        counters: Counters,
        clock: Callable[[], float],
        fault: Fault,
        speculation: Speculation | None = None,
    ) -> None:
        self._books = books
        self._speculation = speculation
        self._fault = fault
        self._counters = counters
        self._clock = clock

    def take(self, plan: StepPlan, result: StepResult) -> Outputs:
        """Commits a step's result. Of several steps that have begun, `plan` must be the first."""
        outputs: Outputs = {}
        spoiled = self._spoiled(plan, result) if result.errors else frozenset()
        if spoiled:
            self._mark_others(plan, spoiled)
        if result.moved is not None and self._books.swap is not None:
            self._books.swap.learn(result.moved)
        sampled = iter(result.tokens)
        for chunk in plan.chunks:
            tokens = next(sampled) if chunk.sample else None
            sequence = self._books.by_row[chunk.row]
            assert sequence is not None, "rows change hands between steps only"
            sequence.in_flight -= 1
            failure = result.errors.get(chunk.row)
            if failure is None and spoiled and self._holds(sequence, spoiled):
                sequence.is_spoiled = True  # it read what the failed row did not store
            if sequence.in_flight and chunk.row in result.unloaded:
                sequence.is_spoiled = True  # it is computed again when its later chunk has ended
            elif sequence.in_flight:  # a later chunk of its prompt runs, at whose end it leaves its row
                sequence.failure = sequence.failure or failure
            if sequence.in_flight and (sequence.failure is not None or sequence.is_spoiled):
                continue
            if chunk.row in result.unloaded or (failure is None and sequence.is_spoiled):
                self._books.preempt(sequence, trusted=False)
                continue
            if sequence.failure is not None or (failure is not None and not tokens):
                reason = sequence.failure or failure
                assert reason is not None, "asked above"
                output = self._fail(sequence, reason)
            else:
                try:
                    if chunk.row in result.prompt_logprobs:
                        sequence.prompt_logprobs += result.prompt_logprobs[chunk.row]
                    if tokens is None:
                        continue
                    if chunk.row in result.vectors:
                        output = self._pooled(sequence, result.vectors[chunk.row])
                    else:
                        output = self._append(sequence, chunk.draft, tokens, result)
                        if failure is not None and output.finish_reason is None:
                            _add(outputs, sequence, output)  # what it said before it failed
                            output = self._fail(sequence, failure)
                except Exception as error:  # noqa: BLE001 - any exception here concerns this sequence alone
                    output = self._fail(sequence, self._fault("its tokens were taken over", error))
            _add(outputs, sequence, output)
        return outputs

    def _spoiled(self, plan: StepPlan, result: StepResult) -> frozenset[int]:
        """Returns the blocks that failed rows should have filled in this step; other rows may share them already."""
        blocks: set[int] = set()
        for chunk in plan.chunks:
            sequence = self._books.by_row[chunk.row]
            if chunk.row in result.errors and sequence is not None:
                first = 0 if chunk.row in result.unloaded else chunk.start // self._books.kv.block_size
                for table, dropped in zip(sequence.tables, sequence.num_dropped, strict=True):
                    blocks.update(table[max(dropped, first) :])
        return frozenset(blocks)

    def _mark_others(self, plan: StepPlan, blocks: frozenset[int]) -> None:
        """Notes which sequences of steps that have begun since read these blocks."""
        own = {chunk.row for chunk in plan.chunks}
        for sequence in self._books.running:
            if sequence.in_flight and sequence.row not in own and self._holds(sequence, blocks):
                sequence.is_spoiled = True

    def _holds(self, sequence: Sequence, blocks: frozenset[int]) -> bool:
        return any(not blocks.isdisjoint(held) for held in self._books.kv.held(sequence))

    def _append(
        self, sequence: Sequence, draft: DraftTokens | None, said: list[int], result: StepResult
    ) -> SequenceOutput:
        first = not sequence.has_output
        if draft is not None:
            self._verify(sequence, draft, said)
        if result.drafts:
            sequence.proposals = result.drafts.get(sequence.row, [])
        tokens, ending = _taken(sequence, said, sequence.row in result.completed)
        if draft is not None:
            self._books.kv.register(sequence)  # before the next step, when the blocks may have left a sliding window
        logprobs = result.logprobs.get(sequence.row)
        sequence.has_run_prompt = True
        if first and sequence.request.first_token_at is None:
            sequence.request.first_token_at = self._clock()
        self._counters.generation_tokens += len(tokens)
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
            logprobs=None if logprobs is None else logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens if first else 0,
            finish_reason=reason,
            stop_token_id=stop_token,
            drafts=self._told_drafts(sequence, is_news=draft is not None or reason is not None),
            times=None if reason is None else self._times(sequence.request),
        )

    def _told_drafts(self, sequence: Sequence, *, is_news: bool) -> DraftCounts | None:
        return sequence.draft_counts if is_news and self._speculation is not None else None

    def _verify(self, sequence: Sequence, draft: DraftTokens, said: list[int]) -> None:
        """Keeps what was computed for the tokens of the draft that the sequence said as well."""
        num_agreed = _num_agreed(draft.token_ids, said)
        sequence.num_computed -= len(draft.token_ids) - num_agreed
        if self._books.kv.draft_states is not None:
            self._books.kv.draft_states.keep(sequence, num_agreed)
        sequence.draft_counts = sequence.draft_counts.with_draft(len(draft.token_ids), num_agreed)
        if self._speculation is not None:
            self._speculation.verified(sequence, draft, num_agreed)

    def _pooled(self, sequence: Sequence, vector: bytes) -> SequenceOutput:
        """Ends a sequence whose whole prompt has run, in a model that pools."""
        sequence.has_run_prompt = True
        sequence.request.first_token_at = self._clock()
        self._books.finish(sequence)
        return SequenceOutput(
            request_id=sequence.request.message.request_id,
            num_cached_tokens=sequence.num_cached_tokens,
            finish_reason=FinishReason.STOP,
            vector=vector,
            times=self._times(sequence.request),
        )

    def end(self, sequence: Sequence, error: RowError | None = None) -> SequenceOutput:
        """Ends an open sequence between steps: with `error`, or as aborted by its client if that is None."""
        self._books.finish(sequence)
        return self._ended(sequence, error)

    def _fail(self, sequence: Sequence, error: RowError) -> SequenceOutput:
        if sequence.status is not Status.FINISHED:
            self._books.finish(sequence, trusted=False)
        return self._ended(sequence, error)

    def _ended(self, sequence: Sequence, error: RowError | None) -> SequenceOutput:
        request = sequence.request
        return ended_output(request.message.request_id, sequence.index, error, self._times(request))

    def _times(self, request: Request) -> RequestTimes | None:
        """Returns the request's times; None while another of its sequences is open."""
        return None if request.key in self._books.requests else request.times(self._clock())


def _add(outputs: Outputs, sequence: Sequence, output: SequenceOutput) -> None:
    client = sequence.request.client
    if client in outputs:
        outputs[client].append(output)
    else:
        outputs[client] = [output]


def _num_agreed(drafts: list[int], said: list[int]) -> int:
    """Returns how many leading drafts the model sampled as well; what was computed for them stays valid."""
    count = 0
    for draft, token in zip(drafts, said, strict=False):
        if draft != token:
            break
        count += 1
    return count


def _taken(
    sequence: Sequence, said: list[int], is_complete: bool
) -> tuple[list[int], tuple[FinishReason, int | None] | None]:
    """Appends tokens up to one that ends the sequence. Returns these tokens, and why the sequence ends (None if it goes
    on). `is_complete`: its grammar allows nothing after them."""
    ending = None
    for count, token in enumerate(said, 1):
        sequence.tokens.append(token)
        ending = sequence.finish_reason()
        if ending is not None and count < len(said):
            return said[:count], ending
    is_open = ending is None or ending[0] is FinishReason.LENGTH
    return said, (FinishReason.STOP, None) if is_open and is_complete else ending


def plain_fault(doing: str, error: BaseException) -> RowError:
    """Makes the error of a failed sequence, without writing a log (for a scheduler without an engine)."""
    return RowError(ErrorKind.INTERNAL, f"a fault ended this sequence while {doing} ({type(error).__name__})")


def ended_output(
    request_id: str, index: int, error: RowError | None, times: RequestTimes | None = None
) -> SequenceOutput:
    """Makes the output of a sequence that ended without a token: with `error`, or as aborted if that is None."""
    return SequenceOutput(
        request_id=request_id,
        index=index,
        finish_reason=FinishReason.ABORT if error is None else FinishReason.ERROR,
        error=None if error is None else error.reason,
        error_kind=None if error is None else error.kind,
        times=times,
    )


def refused_output(request_id: str, kind: ErrorKind, field: str | None, reason: str) -> SequenceOutput:
    """Makes the output of a request that was not taken in. field: of the request, that is to blame."""
    return SequenceOutput(
        request_id=request_id, finish_reason=FinishReason.ERROR, error=reason, error_kind=kind, error_field=field
    )
