"""Prompts with a suffix, in the order each family was trained on."""

import pytest
from tokenizers import AddedToken

from appliance.text.infill import FORMATS, encode_infill, infill_format
from appliance.text.tokenizer import Tokenizer
from tests.server.harness import byte_tokenizer


def with_marks(*marks: str) -> Tokenizer:
    backend = byte_tokenizer()
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return Tokenizer(backend)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.marks[0])
def test_every_format_is_found_and_ordered(form: object) -> None:
    from appliance.text.infill import InfillFormat

    assert isinstance(form, InfillFormat)
    tokenizer = with_marks(*form.marks)
    assert infill_format(tokenizer) == form
    token_ids = encode_infill(tokenizer, form, "hello", "world", add_special_tokens=True)
    shown = "".join(form.parts).replace("{prefix}", "hello").replace("{suffix}", "world")
    assert tokenizer.decode(token_ids) == shown
    assert len(token_ids) == len(form.parts)


def test_none_without_all_marks() -> None:
    assert infill_format(with_marks("<|fim_prefix|>", "<|fim_suffix|>")) is None
    assert infill_format(with_marks()) is None


def test_empty_texts_leave_only_marks() -> None:
    tokenizer = with_marks(*FORMATS[0].marks)
    assert len(encode_infill(tokenizer, FORMATS[0], "", "", add_special_tokens=False)) == 3
