"""A text that continues another one gets no space in front; everything else is as in any text."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from appliance.text.control_tokens import ControlTokens
from appliance.text.infill import encode_infill, infill_format
from appliance.text.tokenizer import Tokenizer

from .test_vocabularies import PREFIXED, kept, tokenizer


@pytest.mark.parametrize("name", [*PREFIXED, "llama-bpe", "gemma-4"])
def test_a_text_in_two_pieces_comes_back(name: str) -> None:
    encode, go_on = tokenizer(name).encode, tokenizer(name).encode_continuation
    for text, _ in kept(name)["cases"]:
        for cut in (1, len(text) // 2):
            ids = encode("x" + text[:cut], add_special_tokens=False) + go_on(text[cut:])
            assert tokenizer(name).decode(ids) == "x" + text


@pytest.mark.parametrize("name", PREFIXED)
def test_behind_a_special_token_text_begins_anew(name: str) -> None:
    encode, go_on = tokenizer(name).encode, tokenizer(name).encode_continuation
    assert go_on("Hello<s>Hello") == [*go_on("Hello"), *encode("<s>Hello", add_special_tokens=False)]
    assert go_on("Hello") != encode("Hello", add_special_tokens=False)


def test_a_vocabulary_without_a_space_in_front_is_shared() -> None:
    one = tokenizer("llama-bpe")
    assert one.encode_continuation("Hello<s>") == one.encode("Hello<s>", add_special_tokens=False)


@pytest.mark.parametrize(
    "step",
    [
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="always", split=False)]),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    ],
)
def test_every_way_to_put_a_space_in_front(step: pre_tokenizers.PreTokenizer) -> None:
    backend = Backend(models.BPE({"\u2581": 0, "\u0120": 1, "a": 2}, []))
    backend.pre_tokenizer = step
    made = Tokenizer(backend)
    assert len(made.encode("a", add_special_tokens=False)) == 2
    assert made.encode_continuation("a") == [2]


@pytest.mark.parametrize("name", PREFIXED)
def test_a_control_token_that_is_cut_adds_no_space(name: str) -> None:
    control = ControlTokens(tokenizer(name))
    marked, cut = control.cut("that </s> end and </s>")
    ids = control.encode(f"<s>[INST] {marked}<s>Hello", cut, add_special_tokens=False)
    assert tokenizer(name).decode(ids) == "<s> [INST] that </s> end and </s><s> Hello"
    assert ids.count(1) == 2
    assert 2 not in ids


def test_code_llamas_suffix_is_not_a_beginning() -> None:
    marks = "\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"
    made = Tokenizer(Backend.from_str(tokenizer("llama-spm").backend.to_str()))
    made.backend.add_special_tokens(list(marks))
    made = Tokenizer(made.backend)
    form = infill_format(made)
    assert form is not None
    ids = encode_infill(made, form, "Hello", "Hello", add_special_tokens=False)
    pre, suf, mid = map(made.token_id, marks)
    assert ids == [pre, *made.encode("Hello", add_special_tokens=False), suf, *made.encode_continuation("Hello"), mid]
