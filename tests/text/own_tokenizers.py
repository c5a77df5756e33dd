"""Tokenizers as an operator would write them, with the faults that they may have."""

import time
from collections.abc import Sequence

END = 256
NO_TOKENIZER = 3


class Letters:
    """Every byte is a token."""

    vocab_size = 257

    def __init__(self, folder: str) -> None:
        self.special_tokens = {"<end>": END}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        found: list[int] = []
        for part in text.replace("<end>", "\0<end>\0").split("\0"):
            found += [END] if part == "<end>" else list(part.encode())
        return [END, *found] if add_special_tokens else found

    def decode(self, token_ids: Sequence[int]) -> str:
        parts = [b"<end>" if each == END else bytes([each]) for each in token_ids]
        return b"".join(parts).decode("utf-8", "replace")


class Lying(Letters):
    """Hangs, raises, or answers what cannot be, by the text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if text == "hang":
            while True:
                time.sleep(0.01)
        if text == "raise":
            raise LookupError("a secret of the machine")
        if text == "fractions":
            return [1.5, 2.5]  # type: ignore[list-item]
        return [999] if text == "lie" else super().encode(text, add_special_tokens=add_special_tokens)


class Mute(Letters):
    """Cannot decode what has the letter x."""

    def decode(self, token_ids: Sequence[int]) -> str:
        if ord("x") in token_ids:
            raise LookupError("a secret of the machine")
        return super().decode(token_ids)


class NoNumber(Letters):
    vocab_size = "many"  # type: ignore[assignment]


class OutOfRange(Letters):
    def __init__(self, folder: str) -> None:
        self.special_tokens = {"<end>": 300}


class Half:
    def __init__(self, folder: str) -> None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return []
