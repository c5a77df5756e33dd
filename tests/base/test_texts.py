"""A byte order mark is no part of a text, and UTF-16 is said to be UTF-16."""

import codecs

import pytest

from appliance.base.texts import NotUtf8Error, utf8_text, without_mark


@pytest.mark.parametrize("text", ["", "a", "{}", "\u00e9", "\ufeff", "x\ufeffy", "\u5317\u4eac", "\0\0", "a" * 100])
def test_a_mark_is_passed_over_once(text: str) -> None:
    plain = text.encode()
    assert utf8_text(codecs.BOM_UTF8 + plain, "it") == text
    assert without_mark(codecs.BOM_UTF8 + plain, "it") == plain
    if not text.startswith("\ufeff"):
        assert utf8_text(plain, "it") == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("text", ["a", '{"custom_id": "a"}', "name: x\n"])
def test_wider_text_is_named(encoding: str, text: str) -> None:
    with pytest.raises(NotUtf8Error, match=r"^in\.txt is UTF-(16|32) text, and UTF-8 is expected$") as caught:
        without_mark(text.encode(encoding), "in.txt")
    assert caught.value.hint == "save it as UTF-8"
    assert encoding[:6].upper() in caught.value.problem


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_the_first_wrong_byte_is_told(mark: bytes) -> None:
    with pytest.raises(NotUtf8Error, match="it is not UTF-8 text") as caught:
        utf8_text(mark + b"ab\xff", "it")
    assert caught.value.start == len(mark) + 2
