"""The grammars of the runner's rows: masks are filled while the model runs, and tokens are consumed after it."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from appliance.engine.faults import row_fault
from appliance.engine.grammar.interface import Matcher, MatcherError
from appliance.engine.grammar.threads import deep_stacks
from appliance.engine.messages import ErrorKind
from appliance.engine.rows import Rows
from appliance.engine.step import Chunk, NewRow, RowError

FILL_BUDGET_S = 1.0  # the filling thread's time for one row, and more for each of its masks:
FILL_BUDGET_A_MASK_S = 0.005  # usual are 0.02 to 0.2 ms; a grammar made to be slow would slow all other rows


@dataclass(slots=True)
class _Row:
    """One constrained row.

    ends: tokens that end the sequence, which the grammar need not know. closed: end tokens that ignore_eos forbids.
    stops: stop tokens, allowed wherever an end is allowed. allowed: allowed_token_ids as mask bits.
    """

    matcher: Matcher
    ends: frozenset[int]
    closed: tuple[int, ...]
    stops: tuple[int, ...]
    may_force: bool
    allowed: np.ndarray | None
    error: RowError | None = None
    budget_s: float = FILL_BUDGET_S
    draft_errors: dict[int, RowError] = field(default_factory=dict)  # why there is no mask after so many drafts


@dataclass(frozen=True, slots=True)
class _Filling:
    """The masks of one row in a step: its own line, and those from `line` on after each draft."""

    row: int
    state: _Row
    drafts: tuple[int, ...]
    line: int


@dataclass(slots=True)
class Advance:
    """The results of consuming a step's tokens, by row."""

    forced: dict[int, list[int]] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    errors: dict[int, RowError] = field(default_factory=dict)


NOTHING = Advance()  # never written to


class GrammarMasks:
    """Fills masks in one thread, without the GIL, while the model runs. Call `begin` before the model runs, `finish`
    before sampling, and `advance` after it."""

    def __init__(self, rows: Rows, clock: Callable[[], float] = time.thread_time) -> None:
        self._rows = rows
        self._clock = clock
        self._by_row: dict[int, _Row] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._filling: Future[None] | None = None

    def put(self, new: NewRow) -> None:
        """Starts a row with a grammar, and consumes again the tokens that it generated before a preemption."""
        assert new.grammar is not None
        sampling, row = new.sampling, new.row
        allowed = None if sampling.allowed_token_ids is None else self._rows.mask_bits[row].copy()
        state = self._by_row[row] = _Row(
            matcher=new.grammar.start(),
            ends=frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else {*new.eos_token_ids}),
            closed=new.eos_token_ids if sampling.ignore_eos else (),
            stops=sampling.stop_token_ids,
            may_force=not (sampling.bad_words or sampling.logit_bias or sampling.logprobs is not None)
            and sampling.allowed_token_ids is None,
            allowed=allowed,
        )
        self._rows.open_mask(row)
        try:
            state.matcher.consume(new.token_ids[new.num_prompt_tokens :])
        except MatcherError as error:
            state.error = _failed(error)

    def drop(self, row: int) -> None:
        self._by_row.pop(row, None)

    def begin(self, chunks: Iterable[Chunk]) -> None:
        """Starts to fill the masks of the chunks that sample in rows with a grammar; one more after each draft."""
        self._rows.draft_masks.clear()
        if not self._by_row:
            return
        states: list[_Filling] = []
        line = len(self._rows.num_tokens)
        for chunk in chunks:
            if chunk.sample and chunk.row in self._by_row:
                drafts = () if chunk.draft is None else tuple(chunk.draft.token_ids)
                states.append(_Filling(chunk.row, self._by_row[chunk.row], drafts, line))
                if drafts:
                    self._rows.draft_masks[chunk.row] = line
                    line += len(drafts)
        if states:
            self._thread = self._thread or ThreadPoolExecutor(1, "engine-masks")
            with deep_stacks():
                self._filling = self._thread.submit(self._fill, states)

    def finish(self) -> None:
        """Waits for the masks that `begin` started."""
        if self._filling is not None:
            filling, self._filling = self._filling, None
            filling.result()

    def advance(self, rows: list[int], tokens: list[int]) -> Advance:
        """Consumes the tokens that were sampled for `rows`; NO_TOKEN where none was."""
        if not self._by_row:
            return NOTHING
        result = Advance()
        for row, token in zip(rows, tokens, strict=True):
            if row in self._by_row:
                self.take(row, token, int(self._rows.num_tokens[row]), result)
        return result

    def take(self, row: int, token: int, length: int, result: Advance) -> None:
        """Consumes a token of the row, which has `length` tokens with it, and adds to `result` what comes of it."""
        state = self._by_row.get(row)
        if state is None or token in state.ends:
            return
        if state.error is not None:
            result.errors[row] = state.error
            return
        try:
            self._advance(row, state, token, length, result)
        except MatcherError as error:
            result.errors[row] = _failed(error)
        except BaseException as error:  # noqa: BLE001 - a panic of the library derives from it; the row alone fails
            result.errors[row] = row_fault("its constraint took in a token", error)

    def num_fitting(self, row: int, tokens: list[int]) -> int:
        """Returns how many of the tokens, from the first on, the row's grammar allows next; all if it has none."""
        state = self._by_row.get(row)
        if state is None or not tokens:
            return len(tokens)
        try:
            return 0 if state.error is not None else state.matcher.num_fitting(tokens)
        except MatcherError as error:
            state.error = _failed(error)
        except BaseException as error:  # noqa: BLE001 - a panic of the library derives from it
            state.error = row_fault("its constraint looked at a draft", error)
        return 0

    def draft_error(self, row: int, num_drafts: int) -> RowError | None:
        """Returns why there is no mask after so many drafts of this step; None if there is, or none is needed."""
        state = self._by_row.get(row)
        return None if state is None else state.draft_errors.get(num_drafts)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _advance(self, row: int, state: _Row, token: int, length: int, result: Advance) -> None:
        if token < 0:
            return
        matcher = state.matcher
        matcher.consume((token,))
        if state.may_force and not matcher.is_complete:
            room = self._rows.token_ids.shape[1] - length
            if forced := matcher.forced()[: max(0, room)]:
                if not 0 <= min(forced) <= max(forced) < self._rows.vocab_size:
                    raise MatcherError("it forces a token that the model does not have")
                matcher.consume(forced)
                result.forced[row] = forced
        if matcher.is_complete:
            result.completed.add(row)

    def _fill(self, fillings: list[_Filling]) -> None:
        for filling in fillings:
            state, bits = filling.state, self._rows.mask_bits[filling.row]
            state.draft_errors.clear()
            if state.error is None:
                try:
                    self._fill_row(bits, state)
                except MatcherError as error:
                    state.error = _failed(error)
                except BaseException as error:  # noqa: BLE001 - a panic of the library derives from it
                    state.error = row_fault("its mask was filled", error)
            if state.error is not None:
                bits[:] = 0
            if filling.drafts:
                self._fill_after_drafts(filling)

    def _fill_after_drafts(self, filling: _Filling) -> None:
        """Fills the mask after each draft, which the grammar was asked for, and takes the drafts back."""
        state, count, number = filling.state, 0, 1
        lines = self._rows.mask_bits[filling.line : filling.line + len(filling.drafts)]
        lines[:] = 0
        if state.error is not None:
            return
        try:
            for number, (bits, token) in enumerate(zip(lines, filling.drafts, strict=True), 1):
                state.matcher.consume((token,))
                count = number
                if state.matcher.is_complete:
                    break  # nothing is sampled after it
                self._fill_row(bits, state)
        except MatcherError as error:
            state.draft_errors[number] = _failed(error)
        except BaseException as error:  # noqa: BLE001 - a panic of the library derives from it
            state.draft_errors[number] = row_fault("its masks after drafts were filled", error)
        try:
            state.matcher.roll_back(count)
        except MatcherError as error:
            state.error = _failed(error)

    def _fill_row(self, bits: np.ndarray, state: _Row) -> None:
        started = self._clock()
        state.matcher.fill(bits)
        state.budget_s += FILL_BUDGET_A_MASK_S - (self._clock() - started)
        if state.budget_s < 0:
            raise MatcherError("its masks take too long")
        for token in state.closed:
            bits[token // 32] &= ~np.uint32(1 << token % 32)
        if state.stops and state.matcher.is_accepting:
            for token in state.stops:
                bits[token // 32] |= np.uint32(1 << token % 32)
        if state.allowed is not None:
            bits &= state.allowed


def _failed(error: MatcherError) -> RowError:
    return RowError(ErrorKind.INVALID, f"the constraint cannot be followed any further: {error}")
