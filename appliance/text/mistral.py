"""Mistral's own tokenizer (`model.tokenizer_mode: mistral`), of the extra `mistral`.

Conversations are encoded by mistral-common. The vocabulary is built from the same file for the tokenizers library, so
that the bytes of tokens are known, as structured output needs; it is compared with mistral-common's before it is used.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from tokenizers import Tokenizer as Backend

from appliance.base.extras import import_extra
from appliance.text import sentencepiece_file, tekken
from appliance.text.conversation import ChatHistory
from appliance.text.errors import ChatTemplateError, TokenizerError
from appliance.text.kept import Loaded, kept_tokenizer
from appliance.text.tokenizer import Tokenizer, TokenizerIdentity

NAME: Final = "model.tokenizer_mode: mistral"
_EXTRA: Final = "mistral"
_SENTENCEPIECE: Final = re.compile(r"tokenizer\.model(?:\.v(\d+)(?:m\d+)?)?|tokenizer\.mm\.model")
_WITHOUT_TOOLS: Final = "v1"
_PROBES: Final = (
    "Hello, THE world 123!\n\n  there",
    " caf\u00e9 \u4f60\u597d \U0001f600\ttab  two",
    "[INST] <s> </s> <0x41> \u2581",
    "\ufb01 \u00c5 A\u030a e\u0301",  # what a normalizing model would change
)


class _Encoded(Protocol):
    tokens: list[int]


class MistralConversations:
    """Encodes conversations by mistral-common, in the version that the tokenizer's file states."""

    name = NAME

    def __init__(self, own: Any) -> None:
        """own: a MistralTokenizer."""
        self._own = own
        self._request = _module("protocol.instruct.request").ChatCompletionRequest

    def encode(self, conversation: ChatHistory) -> list[int]:
        version = self._own.version.value
        if conversation.tools and version == _WITHOUT_TOOLS:
            raise ChatTemplateError(f"the model's tokenizer is {version}, whose conversations have no tools")
        try:
            request = self._request.from_openai(
                messages=list(conversation.messages),
                tools=list(conversation.tools) if conversation.tools else None,
                continue_final_message=conversation.is_continued,
                reasoning_effort=conversation.reasoning_effort,
            )
            encoded: _Encoded = self._own.encode_chat_completion(request)
        except Exception as error:  # of pydantic, jsonschema or mistral-common: its checks of what a client sent
            raise ChatTemplateError(f"mistral-common refused the messages: {_reason(error)}") from error
        return encoded.tokens


def load_mistral(path: Path, cache: Path | None = None) -> Tokenizer:
    """Loads from a folder that has tekken.json or tokenizer.model.v*, or from such a file. cache: keeps a form that
    loads fast. Control tokens that a text spells are characters.

    Raises MissingExtraError without mistral-common, or TokenizerError.
    """
    file = path if path.is_file() and path.suffix != ".gguf" else find_file(path if path.is_dir() else path.parent)
    own = _own(file)
    backend, identity = kept_tokenizer([file], cache, partial(_build, file))
    backend.encode_special_tokens = True
    _check(backend, own, file)
    return Tokenizer(backend, identity, MistralConversations(own))


def find_file(folder: Path) -> Path:
    """Returns the file that mistral-common would take: tekken.json, or the newest version of tokenizer.model."""
    if (folder / tekken.FILE_NAME).is_file():
        return folder / tekken.FILE_NAME
    found = [(int(match[1] or 0), each) for each in folder.iterdir() if (match := _SENTENCEPIECE.fullmatch(each.name))]
    if not found:
        raise TokenizerError(
            f"{NAME}: {folder.name} has neither tekken.json nor tokenizer.model.v*",
            hint="name a folder that has one in model.tokenizer, or leave tokenizer_mode: auto",
        )
    return max(found)[1]


def _own(file: Path) -> Any:
    is_tekken = file.name == tekken.FILE_NAME
    if not is_tekken:
        import_extra("sentencepiece", extra=_EXTRA, asked_by=f"{NAME} with {file.name}")
    made = _module("tokens.tokenizers.mistral").MistralTokenizer
    try:
        return made.from_file(str(file))
    except Exception as error:
        reason = _reason(error).replace(f"{file.parent}/", "")
        raise TokenizerError(f"{NAME}: mistral-common cannot read {file.name}: {reason}") from error


def _module(name: str) -> Any:
    return import_extra(f"mistral_common.{name}", extra=_EXTRA, asked_by=NAME)


def _build(file: Path) -> Loaded:
    build = tekken.build_tokenizer if file.name == tekken.FILE_NAME else sentencepiece_file.build_tokenizer
    return build(file), TokenizerIdentity(tekken.SPECIAL_TOKENS)


def _check(backend: Backend, own: Any, file: Path) -> None:
    """Compares the two on texts that models normalize, split and merge differently. Raises TokenizerError."""
    theirs = own.instruct_tokenizer.tokenizer
    sizes = backend.get_vocab_size(with_added_tokens=True), int(theirs.n_words)
    if sizes[0] != sizes[1]:
        raise TokenizerError(f"{NAME}: {file.name} has {sizes[1]} tokens for mistral-common, and {sizes[0]} for us")
    for text in _PROBES:
        expected: Sequence[int] = theirs.encode(text, bos=True, eos=False)
        if backend.encode(text).ids != list(expected):
            raise TokenizerError(f"{NAME}: {file.name} cuts texts in a way that is not in this version: {text!r}")


def _reason(error: Exception) -> str:
    """Returns one line. pydantic's own text spells the whole request and an address."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        first = errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
