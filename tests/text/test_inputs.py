"""Inputs of models that pool: what is cut is not tokenized, and special tokens stay."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from appliance.text.inputs import InputEncoder, TooLongError, shared
from appliance.text.loading import load_tokenizer
from appliance.text.tokenizer import Tokenizer
from tests.models.tiny_pooled import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> InputEncoder:
    return InputEncoder(tokenizer)


def words(tokenizer: Tokenizer, token_ids: list[int]) -> list[str | None]:
    return [tokenizer.backend.id_to_token(token_id) for token_id in token_ids]


def test_a_text_that_fits_is_whole(tokenizer: Tokenizer, encoder: InputEncoder) -> None:
    found = encoder.one("the cat sat on the mat the dog ran far away", 64, None)
    assert words(tokenizer, found.token_ids)[0::12] == ["[CLS]", "[SEP]"]
    assert not found.is_cut


def test_a_long_text_is_refused_or_cut_and_ends_alike(tokenizer: Tokenizer, encoder: InputEncoder) -> None:
    long = "the cat sat on a mat " * 4
    with pytest.raises(TooLongError, match="more than 6 tokens"):
        encoder.one(long, 6, None)
    assert words(tokenizer, encoder.one(long, 6, "end").token_ids) == ["[CLS]", "the", "cat", "sat", "on", "[SEP]"]
    assert words(tokenizer, encoder.one(long, 6, "start").token_ids) == ["[CLS]", "sat", "on", "a", "mat", "[SEP]"]
    assert encoder.one(long, 6, "end").is_cut


def test_what_is_cut_is_never_tokenized(tokenizer: Tokenizer) -> None:
    seen: list[int] = []

    class Counting:
        """The tokenizers library, which tells how much text it was given."""

        def __init__(self, backend: Backend) -> None:
            self._backend = backend

        def encode(self, text: str, **options: bool) -> object:
            seen.append(len(text))
            return self._backend.encode(text, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(self._backend, name)

    encoder = InputEncoder(tokenizer)
    encoder._backend = Counting(tokenizer.backend)  # type: ignore[assignment]
    page = "the cat sat on a mat " * 50_000
    found = encoder.one(page, 128, "end")
    assert len(found.token_ids) == 128
    assert sum(seen) < 2_000
    assert found.token_ids == InputEncoder(tokenizer).one(page[:4_000], 128, "end").token_ids


@pytest.mark.parametrize("spaces", [1, 3])
def test_cutting_early_changes_no_token(encoder: InputEncoder, spaces: int) -> None:
    text = (" " * spaces).join(["catsat", "the", "unknown", "faraway", "a"] * 400)
    whole = encoder.one(text, 1 << 20, None).token_ids
    for most in (3, 50, 333, 1000):
        assert encoder.one(text, most, "end").token_ids == [*whole[: most - 1], whole[-1]]


def test_a_text_without_spaces_is_cut_too(encoder: InputEncoder) -> None:
    assert len(encoder.one("\u4e2d" * 10_000, 40, "end").token_ids) == 40


def test_a_pair_tells_where_its_second_text_begins(tokenizer: Tokenizer, encoder: InputEncoder) -> None:
    found = encoder.pair("the cat", "sat on a mat", 64, may_cut=False)
    spelled = ["[CLS]", "the", "cat", "[SEP]", "sat", "on", "a", "mat", "[SEP]"]
    assert words(tokenizer, found.token_ids) == spelled
    assert found.second_segment == 4


def test_the_longer_text_of_a_pair_is_cut_first(tokenizer: Tokenizer, encoder: InputEncoder) -> None:
    with pytest.raises(TooLongError):
        encoder.pair("the cat", "sat on a mat " * 9, 9, may_cut=False)
    found = encoder.pair("the cat", "sat on a mat " * 9, 9, may_cut=True)
    assert words(tokenizer, found.token_ids) == [
        "[CLS]", "the", "cat", "[SEP]", "sat", "on", "a", "mat", "[SEP]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [((2, 36), 6, (2, 4)), ((36, 2), 6, (4, 2)), ((9, 9), 5, (3, 2)), ((5, 9), 5, (2, 3)), ((3, 4), 6, (3, 3))],
)
def test_how_much_of_each_text_is_kept(lengths: tuple[int, int], room: int, kept: tuple[int, int]) -> None:
    assert shared(lengths, room) == kept
    first, second = lengths
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    assert abs(first - kept[0]) <= 1


def test_the_text_of_the_first_tokens(encoder: InputEncoder) -> None:
    assert encoder.text_of_first("the cat sat on a mat", 3) == "the cat sat"
    assert encoder.text_of_first("the cat", 3) == "the cat"
