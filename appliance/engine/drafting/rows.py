"""The drafts of the runner's rows: each drafter is asked, and what cannot come next is cut off before it runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from appliance.base.log import logger
from appliance.engine.drafting.interface import Drafter, ModelDrafter
from appliance.engine.step import Chunk, Drafted, DraftTokens, DraftWish, NewRow
from appliance.kernels.interface import Executable, Keeping
from appliance.kernels.sampling import NO_TOKEN

_log = logger("engine")
Fits = Callable[[int, list[int]], int]  # (row, tokens) -> how many of them may come next


@contextmanager
def _contained() -> Iterator[None]:
    """Logs an exception of a drafter: a draft is no part of the answer, so the request goes on without it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - drafters may be anybody's
        _log.exception("a drafter failed; the request goes on without it")


@dataclass(slots=True)
class _Row:
    tokens: list[int]
    ends: frozenset[int]  # the sequence ends with them, so nothing after them is worth to be computed
    drafters: list[Drafter]


class RowDrafts:
    """Asks the drafters for drafts of rows. `vocab_size`: a draft ends before a token that the model does not have."""

    def __init__(self, drafters: Sequence[Drafter], vocab_size: int, model: ModelDrafter | None = None) -> None:
        self._drafters = drafters
        self._model = model
        self._vocab_size = vocab_size
        self._by_row: dict[int, _Row] = {}

    def put(self, new: NewRow) -> None:
        sampling = new.sampling
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else {*new.eos_token_ids})
        tokens = list(new.token_ids)
        if new.embeds is not None:
            tokens[: len(new.embeds)] = [NO_TOKEN] * len(new.embeds)
        state = self._by_row[new.row] = _Row(tokens, ends, [])
        for drafter in self._drafters:
            with _contained():
                drafter.put(new.row, state.tokens, new.num_prompt_tokens, new.drafts_salt)
                state.drafters.append(drafter)
        if self._model is not None and new.embeds is None:  # it has embeddings of its own, and follows ids alone
            self._model.put(new)

    def drop(self, row: int) -> None:
        state = self._by_row.pop(row, None)
        for drafter in () if state is None else state.drafters:
            with _contained():
                drafter.drop(row)
        if state is not None and self._model is not None:
            self._model.drop(row)

    def say(self, row: int, tokens: list[int]) -> None:
        """Appends what the row said."""
        self._by_row[row].tokens += tokens
        if self._model is not None:
            self._model.say(row, tokens)

    def observe(self, chunks: Iterable[Chunk], executable: Executable) -> None:
        """Hands what the model kept of the tokens of a step to a head that reads it."""
        if self._model is None or not self._model.reads_states:
            return
        assert isinstance(executable, Keeping), "the plan says that it keeps states"
        states, start = executable.kept(), 0
        for chunk in chunks:
            self._model.observe(chunk.row, chunk.start, states[start : start + chunk.length])
            start += chunk.length

    def draft(self, wish: DraftWish, fits: Fits) -> Drafted:
        """Returns the drafts of the model. One that fails drafts nothing, and nobody follows it any more."""
        assert self._model is not None, "the plan has one"
        drafted = Drafted()
        with _contained():
            drafted = self._model.draft(wish)
        found = {}
        for row, draft in drafted.drafts.items():
            count = fits(row, draft.token_ids[: self._num_usable(draft.token_ids, self._by_row[row].ends)])
            if count:
                found[row] = draft.cut(count)
        return msgspec.structs.replace(drafted, drafts=found)

    def close(self) -> None:
        if self._model is not None:
            self._model.close()

    def propose(self, rows: Iterable[int], most: int, fits: Fits) -> dict[int, list[DraftTokens]]:
        """Returns the drafts of those of the rows for which there are any. `fits` is asked for each draft."""
        found: dict[int, list[DraftTokens]] = {}
        for row in rows:
            state = self._by_row[row]
            for drafter in state.drafters:
                draft = self._ask(row, state, drafter, most)
                if draft is None:
                    continue
                count = fits(row, draft.token_ids[: self._num_usable(draft.token_ids, state.ends)])
                if count:
                    found.setdefault(row, []).append(draft.cut(count))
        return found

    def _ask(self, row: int, state: _Row, drafter: Drafter, most: int) -> DraftTokens | None:
        """A drafter that fails is not asked again for the row, which goes on without it."""
        with _contained():
            return drafter.propose(row, most)
        state.drafters = [each for each in state.drafters if each is not drafter]
        return None

    def _num_usable(self, tokens: list[int], ends: frozenset[int]) -> int:
        for count, token in enumerate(tokens):
            if token in ends or not 0 <= token < self._vocab_size:
                return count
        return len(tokens)
