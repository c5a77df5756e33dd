"""Spellings of control tokens are cut, other text is left alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from appliance.text.byte_alphabet import CHARACTER_OF_BYTE
from appliance.text.control_tokens import ControlTokens
from appliance.text.tokenizer import Tokenizer as TextTokenizer
from tests.text.counting import CallCounter

SPECIAL = ["<s>", "</s>", "<|a|>", "<|ab|>", "|>", "<|"]


def tokenizer(template: str = "<s> $0 </s>") -> TextTokenizer:
    backend = Tokenizer(models.BPE({CHARACTER_OF_BYTE[byte]: byte for byte in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    named = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return TextTokenizer(backend)


TOKENIZER = tokenizer()
CONTROL = ControlTokens(TOKENIZER)
PARTS = st.lists(st.sampled_from([*SPECIAL, "<", "|", ">", "s", "a", "<tool>", "\ufdd0", " "]), max_size=8).map("".join)


@given(texts=st.lists(PARTS, max_size=4))
def test_no_piece_holds_a_control_token(texts: list[str]) -> None:
    """Neighbouring parts of one message hold none together either."""
    parts: Any = [{"type": "text", "text": text} for text in texts]
    marked, cut = CONTROL.cut(parts)
    whole = "".join(part["text"] for part in marked)
    ids = CONTROL.encode(whole, cut, add_special_tokens=False)
    assert not TOKENIZER.special_ids & set(ids)
    assert TOKENIZER.decode(ids) == "".join(texts)


@pytest.mark.parametrize("template", ["<s> $0 </s>", "<s> $0", "$0 </s>", "$0"])
def test_what_stands_around_a_text_stays(template: str) -> None:
    form = tokenizer(template)
    text, cut = ControlTokens(form).cut("x</s>y")
    found = ControlTokens(form).encode(text, cut, add_special_tokens=True)
    around = form.encode("0", add_special_tokens=True)
    place = around.index(ord("0"))
    assert found == [*around[:place], *b"x</s>y", *around[place + 1 :]]


def test_harmless_values_are_the_same_objects() -> None:
    value = {"role": "user", "content": "a < b > c <tool> \ufdd0", "deep": [{"x": [None, 1, True]}]}
    assert CONTROL.cut(value) == (value, "")
    assert CONTROL.cut(value)[0] is value


def test_text_with_every_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="no characters"):
        CONTROL.cut("<s>" + "".join(map(chr, range(0xFDD0, 0xFDF0))))


def test_a_vocabulary_without_control_tokens() -> None:
    plain = TextTokenizer(Tokenizer(models.BPE({"a": 0}, [])))
    assert ControlTokens(plain).cut("<s>") == ("<s>", "")


def test_work_grows_with_the_text() -> None:
    def work(size: int) -> int:
        with CallCounter() as counter:
            CONTROL.cut("<|" * size)
        return counter.count

    assert work(4000) <= 2.1 * work(2000)
