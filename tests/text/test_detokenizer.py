"""Incremental text equals decoding everything at once, however tokens arrive."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from appliance.text.byte_alphabet import CHARACTER_OF_BYTE
from appliance.text.detokenizer import make_detokenizer
from appliance.text.stop_strings import StopScan, StopStrings
from appliance.text.tokenizer import Tokenizer


def bytes_tokenizer() -> Tokenizer:
    vocabulary = {"<end>": 0, **{CHARACTER_OF_BYTE[byte]: byte + 1 for byte in range(256)}}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    return Tokenizer(backend)


def word_tokenizer() -> Tokenizer:
    """A vocabulary whose decoder joins words by spaces, so that only the library can decode it."""
    vocabulary = {"[unk]": 0, "[cls]": 1, "[sep]": 2, "hello": 3, "wor": 4, "##ld": 5, "!": 6}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[unk]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[cls]", "[sep]"])
    return Tokenizer(backend)


BYTES = bytes_tokenizer()


def incremental(
    tokenizer: Tokenizer, ids: list[int], *, skip: bool, spaces: bool = True, prompt: list[int] | None = None
) -> str:
    detokenizer = make_detokenizer(
        tokenizer, prompt or [], skip_special_tokens=skip, spaces_between_special_tokens=spaces
    )
    return "".join(detokenizer.push(token_id) for token_id in ids) + detokenizer.finish()


@given(st.text(max_size=60))
def test_text_survives(text: str) -> None:
    ids = BYTES.encode(text, add_special_tokens=False)
    assert incremental(BYTES, ids, skip=True) == text


@given(st.lists(st.integers(0, 256), max_size=40), st.booleans())
def test_any_bytes_equal_a_whole_decode(ids: list[int], skip: bool) -> None:
    """A special token shown amid a character cuts it differently, so special tokens are skipped or absent."""
    ids = [token_id for token_id in ids if skip or token_id]
    assert incremental(BYTES, ids, skip=skip) == BYTES.decode(ids, skip_special_tokens=skip)


@given(st.text(max_size=30))
def test_no_piece_has_half_a_character(text: str) -> None:
    detokenizer = make_detokenizer(BYTES, [], skip_special_tokens=True, spaces_between_special_tokens=True)
    pieces = [detokenizer.push(token_id) for token_id in BYTES.encode(text, add_special_tokens=False)]
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_unfinished_character_shows_at_the_end() -> None:
    ids = BYTES.encode("\u5317", add_special_tokens=False)[:2]
    assert incremental(BYTES, ids, skip=True) == BYTES.decode(ids)


def test_library_stream_for_other_vocabularies() -> None:
    words = word_tokenizer()
    assert not words.is_bytewise
    ids = [3, 4, 5, 6, 1, 2]
    assert incremental(words, ids, skip=True) == words.decode(ids, skip_special_tokens=True)
    assert incremental(words, ids, skip=False) == words.decode(ids)
    assert incremental(words, ids, skip=False, spaces=False) == "hello world ! [cls][sep]"
    assert incremental(words, [4, 5], skip=True, prompt=[3]) == " world"


def test_token_bytes() -> None:
    assert BYTES.token_bytes(0) == b"<end>"
    assert BYTES.token_bytes(1 + 0xE5) == b"\xe5"
    assert BYTES.token_text(1 + 0xE5) == "\N{REPLACEMENT CHARACTER}"
    assert BYTES.token_bytes(10_000) == b""


def first_stop(text: str, stops: list[str], *, include: bool = False) -> str:
    """Returns the match by the definition: the stop string that is complete first, of several the longest."""
    for end in range(1, len(text) + 1):
        fitting = [stop for stop in stops if text[:end].endswith(stop)]
        if fitting:
            return text[: end if include else end - max(map(len, fitting))]
    return text


@given(
    st.text("ab\n", max_size=40),
    st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_stop_strings_in_any_pieces(text: str, stops: list[str], include: bool, rng: random.Random) -> None:
    scan = StopScan(StopStrings(tuple(stops)), include=include)
    shown, place = "", 0
    while place < len(text) and scan.matched is None:
        size = rng.randint(1, 4)
        shown += scan.feed(text[place : place + size])
        place += size
        assert first_stop(text, stops, include=include).startswith(shown)
    if scan.matched is None:
        shown += scan.finish()
    assert shown == first_stop(text, stops, include=include)


def test_only_what_may_be_a_stop_is_held() -> None:
    scan = StopScan(StopStrings(("STOP",)), include=False)
    assert scan.feed("xS") == "x"
    assert scan.feed("T") == ""
    assert scan.feed("x") == "STx"
    assert scan.feed("plain") == "plain"


@pytest.mark.parametrize("size", [2000, 4000])
def test_work_is_linear(size: int) -> None:
    """Counted in automaton steps, not in time: a hostile text makes no more than two a character."""
    strings = StopStrings(("a" * 500 + "b",))
    steps = 0
    plain_step = strings.step

    def counted(state: int, character: str) -> int:
        nonlocal steps
        steps += 1
        return plain_step(state, character)

    strings.step = counted  # type: ignore[method-assign] # counts what the scan does
    scan = StopScan(strings, include=False)
    for _ in range(size):
        scan.feed("a")
    assert steps <= 2 * size


@pytest.mark.parametrize("make", [bytes_tokenizer, word_tokenizer])
def test_a_kept_special_token_is_shown(make: Callable[[], Tokenizer]) -> None:
    """Parsers need it: it alone is shown, while other special tokens are skipped."""
    tokenizer = make()
    first, last = min(tokenizer.special_ids), max(tokenizer.special_ids)
    detokenizer = make_detokenizer(
        tokenizer,
        [],
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        kept=frozenset({tokenizer.token_text(last)}),
    )
    shown = "".join(detokenizer.push(token_id) for token_id in (first, last, 5)) + detokenizer.finish()
    assert shown.startswith(tokenizer.token_text(last))
    assert first == last or tokenizer.token_text(first) not in shown
