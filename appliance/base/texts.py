"""Decodes text of people and other programs: UTF-8 without a byte order mark.

Editors and shells of Windows write such marks, and UTF-16. A mark is skipped, because it is not part of the text;
UTF-16 is refused by name, because many parsers of bytes would take it for something else.
"""

import codecs
from typing import Final

from appliance.base.errors import ApplianceError

MARK: Final = codecs.BOM_UTF8
_OTHERS: Final = (  # longer marks first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_HINT: Final = "save it as UTF-8"


class NotUtf8Error(ApplianceError):
    """The bytes are no UTF-8 text. start: the first byte that is none."""

    def __init__(self, where: str, problem: str, start: int = 0) -> None:
        super().__init__(f"{where} {problem}", hint=_HINT)
        self.problem = problem
        self.start = start


def without_mark(data: bytes, where: str) -> bytes:
    """The bytes behind a byte order mark. Only their beginning is looked at.

    Raises NotUtf8Error, which begins with `where`, for UTF-16 and UTF-32, with a mark or without one.
    """
    for mark, name in _OTHERS:
        if data.startswith(mark):
            raise NotUtf8Error(where, f"is {name} text, and UTF-8 is expected")
    if len(data) >= 2 and (data[0] == 0) != (data[1] == 0):  # a letter of ASCII in two bytes
        raise NotUtf8Error(where, "is UTF-16 text, and UTF-8 is expected")
    return data.removeprefix(MARK)


def utf8_text(data: bytes, where: str) -> str:
    """The text of the bytes without its mark. Raises NotUtf8Error."""
    body = without_mark(data, where)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8Error(where, "is not UTF-8 text", error.start + len(data) - len(body)) from error
