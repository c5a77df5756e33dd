"""Tokenizes the inputs of models that pool: texts and pairs of texts, cut to a length without tokenizing what is cut.

A text is tokenized from its beginning in pieces that end at white space, where tokenizers end a token too, until it has
as many tokens as can be used.
"""

from typing import Literal, NamedTuple

from tokenizers import Encoding

from appliance.text.tokenizer import Tokenizer

CutSide = Literal["end", "start"]  # what is cut off
_CHARACTERS_A_TOKEN = 8  # more than most texts have, so that one piece is enough for them
_SPARE_TOKENS = 8  # the last tokens of a piece might differ in the whole text


class Input(NamedTuple):
    """Token ids with special tokens. second_segment: where the second text of a pair begins, if types tell it."""

    token_ids: list[int]
    second_segment: int | None = None
    is_cut: bool = False


class TooLongError(ValueError):
    """An input has more tokens than are allowed."""


class InputEncoder:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.library
        self._num_special = self._backend.num_special_tokens_to_add(False)
        self._num_special_of_pair = self._backend.num_special_tokens_to_add(True)

    def one(self, text: str, most: int, cut: CutSide | None, *, has_special: bool = True) -> Input:
        """Returns a text with its special tokens, or without. cut: which side of a longer text is left out.

        Raises TooLongError for one of more than `most` tokens that may not be cut.
        """
        room = max(0, most - self._num_special) if has_special else most
        encoding = self._whole(text) if cut == "start" else self._begin(text, room)
        is_cut = len(encoding.ids) > room
        if is_cut and cut is None:
            raise TooLongError(f"has more than {most} tokens")
        if is_cut:
            encoding.truncate(room, direction="left" if cut == "start" else "right")
        return Input((self._backend.post_process(encoding) if has_special else encoding).ids, is_cut=is_cut)

    def pair(self, first: str, second: str, most: int, *, may_cut: bool) -> Input:
        """Returns two texts with special tokens between them; the longer one is cut first, at its end.

        Raises TooLongError for a pair of more than `most` tokens that may not be cut.
        """
        room = max(0, most - self._num_special_of_pair)
        one, other = self._begin(first, room), self._begin(second, room)
        lengths = len(one.ids), len(other.ids)
        is_cut = sum(lengths) > room
        if is_cut and not may_cut:
            raise TooLongError(f"has more than {most} tokens")
        if is_cut:
            kept = shared(lengths, room)
            one.truncate(kept[0])
            other.truncate(kept[1])
        encoding = self._backend.post_process(one, other)
        types = encoding.type_ids
        return Input(encoding.ids, types.index(1) if 1 in types else None, is_cut)

    def text_of_first(self, text: str, most: int) -> str:
        """Returns the text of the first `most` tokens."""
        encoding = self._begin(text, most)
        return text if len(encoding.ids) <= most else text[: encoding.offsets[most - 1][1]]

    def _whole(self, text: str) -> Encoding:
        return self._backend.encode(text, add_special_tokens=False)

    def _begin(self, text: str, wanted: int) -> Encoding:
        """Returns more than `wanted` tokens of a text that has more, and all of another."""
        length = _CHARACTERS_A_TOKEN * (wanted + _SPARE_TOKENS)
        while length < len(text):
            end = _last_space(text, length)
            encoding = self._whole(text[:end]) if end else None
            if encoding is not None and len(encoding.ids) > wanted + _SPARE_TOKENS:
                return encoding
            length *= 4
        return self._whole(text)


def shared(lengths: tuple[int, int], room: int) -> tuple[int, int]:
    """Returns how much of two texts is kept if tokens are taken off the longer one, one by one, until they fit."""
    shorter = min(lengths)
    if 2 * shorter >= room:
        first = -(-room // 2) if lengths[0] >= lengths[1] else room // 2
        return first, room - first
    return (room - shorter, shorter) if lengths[0] > lengths[1] else (shorter, room - shorter)


def _last_space(text: str, end: int) -> int:
    """Returns where the last white space before `end` is; 0 if there is none."""
    while end > 0 and not text[end].isspace():
        end -= 1
    return end
