"""The masks of the runner's rows, with a matcher that is a script."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from appliance.engine.grammar.interface import MatcherError
from appliance.engine.grammar.masks import FILL_BUDGET_A_MASK_S, FILL_BUDGET_S, Advance, GrammarMasks
from appliance.engine.messages import SamplingParams
from appliance.engine.rows import Rows
from appliance.engine.step import Chunk, NewRow


class Scripted:
    """Allows token 7, and forces the given tokens."""

    def __init__(
        self, forces: Sequence[int] = (), ends_after: int = 1000, on_fill: Callable[[], None] = lambda: None
    ) -> None:
        self.said: list[int] = []
        self._forces = list(forces)
        self._ends_after = ends_after
        self._on_fill = on_fill

    def start(self) -> "Scripted":
        return self

    def fill(self, row: np.ndarray) -> None:
        self._on_fill()
        row[:] = 0
        row[0] = 1 << 7

    def consume(self, token_ids: Sequence[int]) -> None:
        self.said += token_ids

    def forced(self) -> list[int]:
        forces, self._forces = self._forces, []
        return forces

    @property
    def is_complete(self) -> bool:
        return len(self.said) >= self._ends_after

    @property
    def is_accepting(self) -> bool:
        return True


@pytest.fixture
def rows() -> Rows:
    return Rows(4, 12, 4, 64)


def put(
    rows: Rows, masks: GrammarMasks, matcher: Scripted, row: int = 1, known: Sequence[int] = (5, 6), **sampling: object
) -> None:
    new = NewRow(
        row=row,
        sequence_id=1,
        token_ids=list(known),
        num_prompt_tokens=2,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type] # free keywords
        eos_token_ids=(0,),
        seed=0,
        prompt_logprobs=None,
        grammar=matcher,
    )
    rows.put(new)
    masks.put(new)


def filled(rows: Rows, masks: GrammarMasks, row: int = 1) -> list[int]:
    masks.begin([Chunk(row, 0, 1, 0, (), sample=True)])
    masks.finish()
    assert rows.mask_row[row] == row
    return [
        int(token) for token in np.flatnonzero(np.unpackbits(rows.mask_bits[row].view(np.uint8), bitorder="little"))
    ]


def taken(masks: GrammarMasks, rows: list[int], tokens: list[int]) -> Advance:
    return masks.advance(rows, tokens)


def test_a_mask_is_filled_and_joined_with_stops(rows: Rows) -> None:
    masks = GrammarMasks(rows)
    put(rows, masks, Scripted())
    assert filled(rows, masks) == [7]
    put(rows, masks, Scripted(), row=2, stop_token_ids=(9, 40))
    assert filled(rows, masks, 2) == [7, 9, 40]
    put(rows, masks, Scripted(), row=3, allowed_token_ids=(8,))
    assert filled(rows, masks, 3) == []


def test_what_was_said_before_preemption_is_taken_in_again(rows: Rows) -> None:
    masks, matcher = GrammarMasks(rows), Scripted()
    put(rows, masks, matcher, known=(5, 6, 7, 7, 7))
    assert matcher.said == [7, 7, 7]


def test_forced_tokens_end_with_the_row(rows: Rows) -> None:
    masks = GrammarMasks(rows)
    put(rows, masks, Scripted(forces=range(20, 60)))
    rows.num_tokens[1] = 3  # the runner has counted the sampled one
    advance = taken(masks, [1], [7])
    assert advance.forced == {1: list(range(20, 29))}


@pytest.mark.parametrize(
    "sampling", [{"logprobs": 0}, {"bad_words": ((3,),)}, {"logit_bias": {3: 1.0}}, {"allowed_token_ids": (7,)}]
)
def test_a_step_that_has_something_to_say_is_not_skipped(rows: Rows, sampling: dict[str, object]) -> None:
    masks = GrammarMasks(rows)
    put(rows, masks, Scripted(forces=[20]), **sampling)
    assert taken(masks, [1], [7]).forced == {}


def test_a_complete_grammar_and_an_end_token(rows: Rows) -> None:
    masks, matcher = GrammarMasks(rows), Scripted(ends_after=2)
    put(rows, masks, matcher)
    assert taken(masks, [1], [7]).completed == set()
    assert taken(masks, [1], [0]).completed == set(), "the scheduler ends it"
    assert matcher.said == [7]
    assert taken(masks, [1], [7]).completed == {1}
    masks.drop(1)
    assert taken(masks, [1], [7]).completed == set()


def test_a_row_whose_masks_take_too_long_fails_alone(rows: Rows) -> None:
    now = [0.0]

    def slow() -> None:
        now[0] += 0.3

    masks = GrammarMasks(rows, lambda: now[0])
    put(rows, masks, Scripted(on_fill=slow))
    put(rows, masks, Scripted(), row=2)
    affordable = int(FILL_BUDGET_S / (0.3 - FILL_BUDGET_A_MASK_S))
    assert [len(filled(rows, masks)) for _ in range(affordable + 1)] == [1] * affordable + [0]
    advance = taken(masks, [1, 2], [-1, 7])
    assert set(advance.errors) == {1}
    assert "take too long" in advance.errors[1].reason
    assert filled(rows, masks, 2) == [7]


def test_a_matcher_that_fails_while_it_catches_up_fails_its_row(rows: Rows) -> None:
    class Broken(Scripted):
        def consume(self, token_ids: Sequence[int]) -> None:
            raise MatcherError("no such token")

    masks = GrammarMasks(rows)
    put(rows, masks, Broken())
    assert filled(rows, masks) == []
    assert "no such token" in taken(masks, [1], [-1]).errors[1].reason
