"""Tokenizers that are not the library's: what they answer is checked, and streams are what they decode at once."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from appliance.base.bounded import TookTooLongError
from appliance.base.extras import MissingExtraError
from appliance.base.plugins import PluginError
from appliance.text import slow_tokenizer
from appliance.text.detokenizer import make_detokenizer
from appliance.text.errors import TokenizerError
from appliance.text.loading import load_other, load_tokenizer
from appliance.text.tokenizer import Tokenizer

from .own_tokenizers import END
from .test_tokenizer import byte_level

HERE = "tests.text.own_tokenizers"
TEXT = "Gr\u00fc\u00dfe, \U0001f600 and \u65e5\u672c!"


@pytest.fixture
def letters(tmp_path: Path) -> Tokenizer:
    return load_other(tmp_path, "custom", f"{HERE}.Letters")


def test_it_does_what_the_text_layer_needs(letters: Tokenizer) -> None:
    assert letters.encode("a<end>", add_special_tokens=True) == [END, 97, END]
    assert letters.encode_continuation("ab") == [97, 98]
    assert letters.decode([97, END], skip_special_tokens=True) == "a"
    assert (letters.vocab_size, letters.special_ids, letters.added_tokens) == (257, frozenset([END]), {END: "<end>"})
    assert (letters.token_id("<end>"), letters.token_bytes(END), letters.token_text(97)) == (END, b"<end>", "a")
    assert letters.token_bytes(999) == b""
    assert letters.kind == f"{HERE}.Letters"


@pytest.mark.parametrize("skip", [True, False])
def test_streams_are_what_is_decoded_at_once(letters: Tokenizer, skip: bool) -> None:
    ids = letters.encode(f"{TEXT}<end>x", add_special_tokens=False)
    stream = make_detokenizer(
        letters, letters.encode("before", add_special_tokens=True), skip_special_tokens=skip,
        spaces_between_special_tokens=True,
    )  # fmt: skip
    pieces = [stream.push(token_id) for token_id in ids]
    assert "".join(pieces) + stream.finish() == letters.decode(ids, skip_special_tokens=skip)
    assert not any("\ufffd" in piece for piece in pieces)
    for token_id in "\u65e5".encode()[:2]:
        stream.push(token_id)
    assert stream.finish() == "\ufffd"


def test_answers_that_cannot_be_are_refused(tmp_path: Path, letters: Tokenizer) -> None:
    lying = load_other(tmp_path, "custom", f"{HERE}.Lying")
    with pytest.raises(TokenizerError, match="an id that is not below vocab_size"):
        lying.encode("lie", add_special_tokens=False)
    with pytest.raises(TokenizerError, match="no list of token ids"):
        lying.encode("fractions", add_special_tokens=False)
    with pytest.raises(TookTooLongError, match="Lying took more than 2"):
        lying.encode("hang", add_special_tokens=False)
    assert lying.encode("a", add_special_tokens=False) == [97]
    with pytest.raises(TokenizerError, match="only the tokenizer mode auto"):
        _ = letters.library


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "cannot be imported"),
        ("NO_TOKENIZER", "cannot be constructed: TypeError"),
        ("Half", "it has no decode, vocab_size, special_tokens"),
        ("NoNumber", "vocab_size is no number"),
        ("OutOfRange", "special_tokens are not different ids below vocab_size"),
    ],
)
def test_one_that_is_none_is_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises((PluginError, TokenizerError), match=words) as error:
        load_other(tmp_path, "custom", f"{HERE}.{name}")
    assert f"{HERE}.{name}" in str(error.value)


def test_slow_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    byte_level("qwen2").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    slow, theirs = load_other(tmp_path, "slow", None), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("hello world", TEXT, ""):
        ids = slow.encode(text, add_special_tokens=True)
        assert ids == theirs.encode(text)
        assert ids == load_tokenizer(tmp_path).encode(text, add_special_tokens=True)
        assert slow.decode(ids) == theirs.decode(ids)


def test_slow_without_transformers_or_a_tokenizer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TokenizerError, match=r"model\.tokenizer_mode: slow: transformers reads no tokenizer there"):
        load_other(tmp_path, "slow", None)
    monkeypatch.setattr(slow_tokenizer, "import_extra", lambda *_, **words: missing(**words))
    with pytest.raises(MissingExtraError, match=r"model\.tokenizer_mode: slow torch"):
        load_other(tmp_path, "slow", None)


def missing(extra: str, asked_by: str) -> None:
    raise MissingExtraError(f"{asked_by} {extra}")
