"""Converts text to token ids and back: a thin layer over tokenizers.Tokenizer that knows the bytes of every token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from appliance.text.byte_alphabet import spelled_bytes
from appliance.text.continuation import continuing_backend
from appliance.text.conversation import ConversationEncoder
from appliance.text.errors import TokenizerError
from appliance.text.own_tokenizer import OwnBackend

_SPACE = "\u2581"
_BYTE_TOKEN_LENGTH = len("<0x00>")


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """A checkpoint's special tokens and chat templates, beside its vocabulary."""

    special_tokens: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # "default" -> Jinja text


class Tokenizer:
    """Encodes and decodes. Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend | OwnBackend,
        identity: TokenizerIdentity | None = None,
        conversations: ConversationEncoder | None = None,
    ) -> None:
        """conversations: encodes them in place of a chat template."""
        self.backend = backend
        self.identity = identity or TokenizerIdentity()
        self.conversations = conversations
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._spelling = _spelling_of(backend)
        self._bytes: dict[int, bytes] = {}

    @property
    def is_bytewise(self) -> bool:
        """The text of a token sequence is the joined bytes of its tokens, independent of the context."""
        return self._spelling is not None

    @property
    def kind(self) -> str:
        """What the tokenizer is: the model of the library, such as BPE, or the name of another."""
        return self.backend.name if isinstance(self.backend, OwnBackend) else type(self.backend.model).__name__

    @property
    def library(self) -> Backend:
        """The library's tokenizer. Raises TokenizerError where the tokenizer is not of the library."""
        if isinstance(self.backend, OwnBackend):
            raise TokenizerError(f"{self.backend.name}: only the tokenizer mode auto can do this")
        return self.backend

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_continuation(self, text: str) -> list[int]:
        """Returns the ids of a text that continues earlier text: without a space in front, without special tokens.

        After an added token, the rest of the text is tokenized as by `encode`.
        """
        continuing = self._continuing
        if continuing is None:
            return self.encode(text, add_special_tokens=False)
        encoding = continuing.encode(text, add_special_tokens=False)
        ids = encoding.ids
        place = next((place for place, token_id in enumerate(ids) if token_id in self.added_tokens), None)
        if place is None:
            return ids
        return ids[:place] + self.encode(text[encoding.offsets[place][0] :], add_special_tokens=False)

    @cached_property
    def _continuing(self) -> Backend | None:
        """The tokenizer of continuations; None if it is the one of all texts."""
        if isinstance(self.backend, OwnBackend):
            return None
        made = continuing_backend(self.backend)
        return None if made is self.backend else made

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that one token adds to the output, special tokens spelled out; empty for an unknown id.

        If tokens have no bytes of their own (`is_bytewise` is false), it is the UTF-8 of the token decoded alone.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Returns `token_bytes` as text; bytes that are not a whole character become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _find_bytes(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self.special_ids:
            return token.encode()
        if self._spelling == "byte_level":
            spelled = spelled_bytes(token)
            return token.encode() if spelled is None else spelled
        if self._spelling == "byte_fallback":
            return _fallback_bytes(token)
        return self.backend.decode([token_id], skip_special_tokens=False).encode()


def _fallback_bytes(token: str) -> bytes:
    if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return token.encode()
    return token.replace(_SPACE, " ").encode()


def _spelling_of(backend: Backend | OwnBackend) -> str | None:
    """Returns how tokens spell bytes: "byte_level", "byte_fallback", or None if only the library's decoder knows."""
    if backend.decoder is None:
        return None
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    if state["type"] == "ByteLevel":
        return "byte_level"
    if state["type"] != "Sequence":
        return None
    steps = [_step_name(step) for step in state["decoders"]]
    # A final Strip applies only to the first token of a whole text, never to the continuation of a prompt.
    if steps in (["metaspace", "ByteFallback", "Fuse"], ["metaspace", "ByteFallback", "Fuse", "Strip"]):
        return "byte_fallback"
    return None


def _step_name(step: dict[str, Any]) -> str:
    if step["type"] == "Replace" and step["pattern"] == {"String": _SPACE} and step["content"] == " ":
        return "metaspace"
    return str(step["type"])
