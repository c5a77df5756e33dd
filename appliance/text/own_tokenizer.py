"""A tokenizer that is not the library's: the operator's own, or transformers' slow one, as the text layer uses it.

What it answers is checked, and each call takes a bounded time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tokenizers import AddedToken

from appliance.base.bounded import BoundedCalls
from appliance.base.plugin_types import CustomTokenizer
from appliance.base.plugins import PluginError, load_plugin
from appliance.text.errors import TokenizerError

FIELD: Final = "model.tokenizer_cls"
TIMEOUT_S: Final = 2.0
_CHARACTERS_A_SECOND: Final = 20_000  # fewer than any tokenizer takes; long texts get as much more time
_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"

T = TypeVar("T")


class EncodedText(NamedTuple):
    ids: list[int]


class OwnBackend:
    """Does what `text.tokenizer` needs of the library's tokenizer. Raises TokenizerError for answers that cannot be."""

    decoder: None = None  # the bytes of tokens are not known

    def __init__(self, own: CustomTokenizer, name: str) -> None:
        """name: what errors call it."""
        self.name = name
        self._own = own
        self._calls = BoundedCalls(TIMEOUT_S)
        try:
            self._size = index(own.vocab_size)
            self._specials = {str(text): index(token_id) for text, token_id in own.special_tokens.items()}
        except (AttributeError, TypeError) as error:
            raise TokenizerError(f"{name}: vocab_size is no number, or special_tokens no ids by their texts") from error
        self._special_texts = {token_id: text for text, token_id in self._specials.items()}
        wrong = [token_id for token_id in self._special_texts if not 0 <= token_id < self._size]
        if self._size < 1 or wrong or len(self._special_texts) != len(self._specials):
            raise TokenizerError(f"{name}: special_tokens are not different ids below vocab_size ({self._size})")

    def encode(self, text: str, add_special_tokens: bool) -> EncodedText:
        call = partial(self._own.encode, text, add_special_tokens=add_special_tokens)
        ids = self._run(call, len(text) / _CHARACTERS_A_SECOND)
        try:
            found = [index(each) for each in ids]
        except TypeError as error:
            raise TokenizerError(f"{self.name}: encode answered what is no list of token ids") from error
        if found and not 0 <= min(found) <= max(found) < self._size:
            raise TokenizerError(f"{self.name}: encode answered an id that is not below vocab_size ({self._size})")
        return EncodedText(found)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        kept = [each for each in token_ids if not (skip_special_tokens and each in self._special_texts)]
        text = self._run(partial(self._own.decode, kept), len(kept) / _CHARACTERS_A_SECOND)
        if not isinstance(text, str):
            raise TokenizerError(f"{self.name}: decode answered {type(text).__name__}, and no text")
        return text

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return self._size

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        raise TokenizerError(f"{self.name}: it has no list of its tokens")

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return {token_id: AddedToken(text, special=True) for token_id, text in self._special_texts.items()}

    def token_to_id(self, token: str) -> int | None:
        return self._specials.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Returns the text of a token; None for an id that is not in the vocabulary."""
        if not 0 <= token_id < self._size:
            return None
        special = self._special_texts.get(token_id)
        return self.decode([token_id]) if special is None else special

    def _run(self, call: Callable[[], T], more_s: float) -> T:
        return self._calls.run(self.name, call, more_s)


class OwnStream:
    """Decodes one token after another, as the library's DecodeStream does."""

    def __init__(self, ids: Sequence[int]) -> None:
        """ids: of the end of the prompt."""
        self._ids = list(ids)
        self._start = 0  # of the tokens that are decoded
        self._end = len(self._ids)  # of those whose text was given
        self._given: str | None = None  # the text of these, once it was asked for

    def step(self, backend: OwnBackend, token_id: int) -> str | None:
        """Returns the text that the token adds; None while a character has not all its bytes."""
        self._ids.append(token_id)
        if self._given is None:
            self._given = backend.decode(self._ids[self._start : self._end])
        text = backend.decode(self._ids[self._start :])
        if len(text) <= len(self._given) or text.endswith(_UNFINISHED):
            return None
        added, self._given = text[len(self._given) :], None
        self._start, self._end = self._end, len(self._ids)
        return added


def load_own(path: str, folder: Path) -> OwnBackend:
    """Constructs the tokenizer that the dotted path names. Raises PluginError or TokenizerError."""
    make = load_plugin(path, FIELD)
    try:
        own = make(str(folder))
    except Exception as error:
        message = f"{FIELD}: {path} cannot be constructed: {type(error).__name__}: {error}"
        raise PluginError(message, hint="a class or function of one argument, the tokenizer's folder") from error
    if not isinstance(own, CustomTokenizer):
        missing = [each for each in ("encode", "decode", "vocab_size", "special_tokens") if not hasattr(own, each)]
        raise PluginError(f"{FIELD}: {path} is no tokenizer: it has no {', '.join(missing)}")
    return OwnBackend(own, path)
