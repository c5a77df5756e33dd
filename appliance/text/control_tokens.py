"""Control tokens in client text: a message that contains the text `<|im_end|>` must not end the message.

Each spelling of a control token gets a cut after its first character. The text is rendered with the cuts and tokenized
in the pieces between them, so that no piece holds a whole control token. Text without such a spelling has no cuts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from appliance.text.tokenizer import Tokenizer

T = TypeVar("T")

_CUTS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # Unicode's noncharacters, which are for internal use
_MOST_DEEP = 200  # levels of a value; the bounds of templates are lower


class ControlTokens:
    """The control tokens of one vocabulary. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spelled = {tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids}
        self._pattern = _any_of(text for text in spelled if len(text) > 1)

    def cut(self, value: T) -> tuple[T, str]:
        """Returns a copy of a JSON-like value with cuts in all its texts, and the cut; or the value itself and "" if
        there is nothing to cut. Raises ValueError for text that holds every code point that could be a cut."""
        if self._pattern is None or not any(self._pattern.search(text) for text in _texts(value)):
            return value, ""
        cut = next((cut for cut in _CUTS if not any(cut in text for text in _texts(value))), None)
        if cut is None:
            raise ValueError("the text holds all of U+FDD0 to U+FDEF, which are no characters")
        return self._with_cuts(value, cut), cut

    def encode(self, text: str, cut: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a rendered text that contains the cuts of the method `cut`."""
        encode = self._tokenizer.encode
        if not cut or cut not in text:
            return encode(text, add_special_tokens=add_special_tokens)
        first, *others = text.split(cut)
        token_ids = encode(first, add_special_tokens=False)
        for piece in others:
            token_ids += self._tokenizer.encode_continuation(piece)
        if not add_special_tokens:
            return token_ids
        sample, around = encode("a", add_special_tokens=False), encode("a", add_special_tokens=True)
        place = next(at for at in range(len(around)) if around[at : at + len(sample)] == sample)
        return around[:place] + token_ids + around[place + len(sample) :]

    def _with_cuts(self, value: Any, cut: str) -> Any:
        if isinstance(value, str):
            return self._with_cuts_in(value, cut)
        if isinstance(value, Mapping):
            return {self._with_cuts(name, cut): self._with_cuts(each, cut) for name, each in value.items()}
        if isinstance(value, list | tuple):
            between = cut if self._pattern is not None and self._pattern.search(_joined(value)) else ""
            copies = [self._with_cuts(each, cut) for each in value]
            return [_behind(between, each) if place else each for place, each in enumerate(copies)]
        return value

    def _with_cuts_in(self, text: str, cut: str) -> str:
        assert self._pattern is not None
        pieces, start = [], 0
        while found := self._pattern.search(text, max(0, start)):
            pieces.append(text[start : found.start() + 1])
            start = found.start() + 1  # spellings may overlap
        return cut.join([*pieces, text[start:]])


def _joined(value: Sequence[Any]) -> str:
    """Joins the texts of a message in parts, as a template may write them without a gap."""
    return "".join(each["text"] for each in value if isinstance(each, Mapping) and isinstance(each.get("text"), str))


def _behind(cut: str, part: Any) -> Any:
    is_part = isinstance(part, Mapping) and isinstance(part.get("text"), str)
    return {**part, "text": cut + part["text"]} if is_part else part


def _texts(value: Any, depth: int = 0) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif depth < _MOST_DEEP and isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts(name, depth + 1)
            yield from _texts(each, depth + 1)
    elif depth < _MOST_DEEP and isinstance(value, list | tuple):
        yield _joined(value)
        for each in value:
            yield from _texts(each, depth + 1)


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a pattern that matches any of the texts. It is a trie, so a search takes linear time."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_pattern_of(tree)) if tree else None


def _pattern_of(node: dict[str, Any]) -> str:
    """Returns the pattern of a trie node. It ends at the shortest text, which is enough to find a match."""
    if "" in node:
        return ""
    branches = [re.escape(char) + _pattern_of(below) for char, below in sorted(node.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
