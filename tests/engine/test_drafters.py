"""Drafters: what they propose, that they cost the same at any length, and that what they keep is bounded."""

import random
from collections.abc import Callable, Sequence

import pytest

from appliance.base.plugins import PluginError
from appliance.engine.drafting.custom import CustomDrafter, load_propose
from appliance.engine.drafting.history import BYTES_PER_TOKEN, History
from appliance.engine.drafting.interface import Drafter
from appliance.engine.drafting.ngram import NgramDrafter
from appliance.engine.drafting.rows import RowDrafts
from appliance.engine.drafting.suffix import GRAM, SuffixDrafter, SuffixLimits
from appliance.engine.messages import SamplingParams
from appliance.engine.step import NewRow

from . import drafters

ROOM = 1 << 16  # bytes


def ngram() -> NgramDrafter:
    return NgramDrafter(2, 4)


def suffix(answers: int = 10, size: int = ROOM, **limits: float) -> SuffixDrafter:
    return SuffixDrafter(SuffixLimits(**limits), History(GRAM, answers, size))  # type: ignore[arg-type] # free keywords


def proposed(drafter: Drafter, tokens: Sequence[int], most: int = 4, salt: str | None = None) -> list[int] | None:
    """Puts a row, asks once, and drops it: what it says after its prompt of one token is its answer."""
    drafter.put(0, list(tokens), len(tokens), salt)
    draft = drafter.propose(0, most)
    drafter.drop(0)
    return None if draft is None else draft.token_ids


def finish(drafter: SuffixDrafter, answer: Sequence[int], salt: str | None = None) -> None:
    tokens = [1]
    drafter.put(1, tokens, 1, salt)
    tokens += answer
    drafter.drop(1)


def test_ngram_takes_the_longest_gram_at_its_latest_place() -> None:
    assert proposed(ngram(), [1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]) == [4, 9, 2, 3], "1 2 3 is longer than 2 3"
    assert proposed(ngram(), [2, 3, 4, 4, 2, 3, 5, 8, 2, 3]) == [5, 8, 2, 3], "the second 2 3 is the later one"
    assert proposed(ngram(), [2, 3, 4, 7, 3]) is None, "a gram of one token is too short"
    assert proposed(ngram(), [2]) is None
    assert proposed(ngram(), [5, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1], "what repeats goes on"


@pytest.mark.parametrize("make", [ngram, suffix])
def test_a_growing_row_is_proposed_what_a_new_one_is(make: Callable[[], Drafter]) -> None:
    chance = random.Random(4)
    growing, tokens = make(), [chance.randrange(4) for _ in range(20)]
    growing.put(0, tokens, 20, None)
    for _ in range(150):
        draft = growing.propose(0, 5)
        assert (None if draft is None else draft.token_ids) == proposed(make(), tokens, 5)
        tokens += [chance.randrange(4) for _ in range(chance.randrange(3))]


def test_suffix_takes_what_followed_most_often() -> None:
    text = [1, 2, 3, 7, 7, 1, 2, 3, 8, 8, 1, 2, 3, 7, 9, 1, 2, 3]
    assert proposed(suffix(), text) == [7, 9, 1], "7 twice, then the later of two; as long as the match"
    assert proposed(suffix(min_token_prob=0.5), text) == [7], "9 has a probability of a third"
    assert proposed(suffix(max_spec_factor=2.0), [1, 2, 3, 4, 5, 6, 1, 2, 3], 8) == [4, 5, 6, 1, 2, 3]
    assert proposed(suffix(), [1, 2, 9, 1, 2]) is None, "two tokens are no match"


def test_suffix_looks_finished_answers_up() -> None:
    drafter = suffix()
    finish(drafter, [11, 12, 13, 14, 15, 16, 17, 18])
    assert proposed(drafter, [3, 11, 12, 13]) == [14, 15, 16]
    assert proposed(drafter, [12, 13, 14, 7, 11, 12, 13, 14]) == [15, 16, 17, 18], "there four tokens match"


def test_a_row_goes_before_equally_good_answers() -> None:
    drafter = suffix()
    finish(drafter, [11, 12, 13, 14, 15, 16])
    assert proposed(drafter, [11, 12, 13, 24, 25, 26, 11, 12, 13]) == [24, 25, 26]


def test_answers_of_another_salt_are_not_looked_up() -> None:
    drafter = suffix()
    finish(drafter, [11, 12, 13, 14, 15], "mine")
    assert proposed(drafter, [3, 11, 12, 13], salt="mine") == [14, 15]
    assert proposed(drafter, [3, 11, 12, 13], salt="other") is None
    assert proposed(drafter, [3, 11, 12, 13]) is None


def test_a_row_that_is_put_again_is_stored_once() -> None:
    history = History(GRAM, 10, ROOM)
    drafter = SuffixDrafter(SuffixLimits(), history)
    finish(drafter, [11, 12, 13, 14, 15])
    resumed = [1, 11, 12, 13, 14, 15]
    drafter.put(2, resumed, 1, None)
    resumed += [16, 17, 18, 19]
    drafter.drop(2)
    assert history.num_tokens == 9


@pytest.mark.parametrize(
    "history", [History(GRAM, 5, ROOM), History(GRAM, 1000, 60 * BYTES_PER_TOKEN)], ids=["answers", "bytes"]
)
def test_old_answers_make_room(history: History) -> None:
    for number in range(100):
        history.add([100 + number, 7, 8, 9, *range(8)], None)
        assert history.num_tokens <= 60
    assert history.num_tokens == 60
    found = [place.tokens[0] for place in history.places([7, 8, 9], None, 50)]
    assert found == [199, 198, 197, 196, 195]
    assert not list(history.places([103, 7, 8], None, 50))


def test_an_answer_that_cannot_fit_is_left_out() -> None:
    history = History(GRAM, 10, 20 * BYTES_PER_TOKEN)
    history.add(list(range(30)), None)
    history.add([1, 2], None)
    assert history.num_tokens == 0
    assert History(GRAM, 0, ROOM).num_tokens == 0
    History(GRAM, 0, ROOM).add(list(range(30)), None)


def new(row: int, tokens: list[int], **sampling: object) -> NewRow:
    return NewRow(
        row=row,
        sequence_id=row,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type] # free keywords
        eos_token_ids=(0,),
        seed=1,
        prompt_logprobs=None,
    )


def all_fit(row: int, tokens: list[int]) -> int:
    return len(tokens)


def test_drafts_end_where_nothing_can_follow() -> None:
    def parrot(tokens: Sequence[int], most: int) -> list[int]:
        return [4, 5, 0, 6, 99, 7][:most]

    rows = RowDrafts([CustomDrafter(parrot)], 64)
    rows.put(new(0, [1]))
    rows.put(new(1, [1], ignore_eos=True))
    rows.put(new(2, [1], stop_token_ids=(5,)))
    found = rows.propose([0, 1, 2], 6, all_fit)
    assert {row: drafts[0].token_ids for row, drafts in found.items()} == {0: [4, 5], 1: [4, 5, 0, 6], 2: [4]}
    assert rows.propose([0], 6, lambda row, tokens: 0) == {}


@pytest.mark.parametrize(
    "name", ["fails", "exits", "hangs", "says_words", "says_nothing", "says_other_ids", "never_ends"]
)
def test_a_drafter_that_fails_is_left_out_of_the_row(name: str) -> None:
    propose = load_propose(f"tests.engine.drafters.{name}")
    rows = RowDrafts([CustomDrafter(propose, timeout_s=0.05), CustomDrafter(drafters.repeat)], 64)
    rows.put(new(0, [1, 5]))
    rows.say(0, [6])
    for _ in range(2):
        assert [draft.token_ids for draft in rows.propose([0], 2, all_fit)[0]] == [[6, 6]]
    rows.drop(0)


@pytest.mark.parametrize(
    "name", ["tests.engine.drafters.absent", "no.such.module", "tests.engine.drafters.NOT_A_DRAFTER"]
)
def test_a_drafter_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=r"speculative\.drafter"):
        load_propose(name)
    assert load_propose("tests.engine.drafters.repeat")([3, 4], 2) == [4, 4]
