"""Incremental detokenization: a character is held back until all its bytes have come."""

import codecs
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Protocol

from tokenizers.decoders import DecodeStream

from appliance.text.own_tokenizer import OwnBackend, OwnStream
from appliance.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 6  # the last tokens of the prompt, so that the first token is decoded as a continuation


class Detokenizer(Protocol):
    """Detokenizes one sequence. The joined pieces equal the decoding of all tokens after the prompt."""

    def push(self, token_id: int) -> str:
        """Returns the text that this token completes; often empty."""

    def finish(self) -> str:
        """Returns U+FFFD for a character that was never completed, else an empty text."""


def make_detokenizer(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool,
    kept: Set[str] = frozenset(),
) -> Detokenizer:
    """Makes the detokenizer of one sequence. kept: special tokens that are shown even if others are skipped.

    spaces_between_special_tokens matters only to vocabularies whose decoder puts spaces between tokens.
    """
    skipped = _skipped(tokenizer, kept) if skip_special_tokens else frozenset[int]()
    if tokenizer.is_bytewise:
        return ByteDetokenizer(tokenizer, skipped)
    return StreamDetokenizer(tokenizer, prompt, skipped, join_special_tokens=not spaces_between_special_tokens)


def _skipped(tokenizer: Tokenizer, kept: Set[str]) -> frozenset[int]:
    if not kept:
        return tokenizer.special_ids
    return tokenizer.special_ids - {token_id for token_id, text in tokenizer.added_tokens.items() if text in kept}


class ByteDetokenizer:
    """Serves vocabularies whose tokens are bytes: a table and an incremental UTF-8 decoder; constant work per token."""

    def __init__(self, tokenizer: Tokenizer, skipped: Iterable[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = skipped if isinstance(skipped, frozenset) else frozenset(skipped)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class StreamDetokenizer:
    """Serves every other vocabulary by a stream of the library's or ours, started with the end of the prompt."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], skipped: frozenset[int], *, join_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._join_special_tokens = join_special_tokens
        self._last_was_special = False
        context = [token_id for token_id in prompt[-CONTEXT_TOKENS:] if token_id not in skipped]
        self._step = _step_of(tokenizer, context)
        self._has_unshown = False

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        is_special = token_id in self._tokenizer.special_ids
        if self._join_special_tokens and is_special and self._last_was_special:
            return self._tokenizer.token_text(token_id)
        self._last_was_special = is_special
        text = self._step(token_id)
        self._has_unshown = text is None
        return text or ""

    def finish(self) -> str:
        return "\N{REPLACEMENT CHARACTER}" if self._has_unshown else ""


def _step_of(tokenizer: Tokenizer, context: Sequence[int]) -> Callable[[int], str | None]:
    """Returns what gives the text of each next token, or None while a character is not whole."""
    if isinstance(tokenizer.backend, OwnBackend):
        return partial(OwnStream(context).step, tokenizer.backend)
    return partial(DecodeStream(ids=list(context), skip_special_tokens=False).step, tokenizer.backend)
