"""Builds a tokenizer from GGUF metadata.

Control tokens are special; control and user-defined tokens are matched whole in text.
"""

from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, processors

from appliance.checkpoint.gguf import GgufFile
from appliance.text import gguf_fields as fields
from appliance.text.byte_alphabet import spelled_bytes
from appliance.text.errors import TokenizerError
from appliance.text.gguf_models import byte_level, respelled, sentencepiece, splitting_of, unigram, word_piece

_KINDS: dict[str, tuple[Callable[[GgufFile], Tokenizer], str]] = {
    "gpt2": (byte_level, "byte-level BPE"),
    "llama": (sentencepiece, "SentencePiece BPE"),
    "gemma4": (sentencepiece, "Gemma's BPE"),
    "t5": (unigram, "SentencePiece unigrams"),
    "bert": (word_piece, "WordPiece"),
}
# The second text of a pair, in kinds whose models read pairs.
_PAIRS = {"bert": "$B:1 last:1", "t5": "last:0 $B:0 last:0"}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Builds the tokenizer. Raises TokenizerError for an unknown kind of vocabulary or pre-tokenizer, and for parts
    that do not fit together."""
    kind = fields.kind(file)
    if kind not in _KINDS:
        known = ", ".join(f"{name} ({noun})" for name, (_, noun) in _KINDS.items())
        raise TokenizerError(
            f"the tokenizer kind {kind!r} of this GGUF file is not in this version", hint=f"known kinds are {known}"
        )
    build, _ = _KINDS[kind]
    try:
        tokenizer = build(file)
    except TokenizerError:
        raise
    except Exception as error:  # the library has no exception of its own
        message = f"the vocabulary of this GGUF file does not fit together: {error}"
        raise TokenizerError(message, hint="give model.tokenizer a folder with tokenizer.json") from error
    _add_tokens(file, tokenizer, kind)
    _set_ends(tokenizer, *_ends(file, kind), _PAIRS.get(kind, "$B:1"))
    return tokenizer


def _add_tokens(file: GgufFile, tokenizer: Tokenizer, kind: str) -> None:
    is_byte_level = kind == "gpt2"
    added: list[AddedToken] = []
    for token, token_type in zip(fields.tokens(file), fields.listed(file, "token_type"), strict=False):
        is_control = token_type == fields.CONTROL
        # A byte-level control token outside the alphabet is mislabelled, and adding it would grow the vocabulary.
        if is_control and is_byte_level and spelled_bytes(token) is None and tokenizer.token_to_id(token) is None:
            continue
        if token and (is_control or token_type == fields.USER_DEFINED):
            spelled = respelled(token) if kind == "llama" else token
            added.append(AddedToken(spelled, normalized=False, special=is_control))
    tokenizer.add_tokens(added)


def _ends(file: GgufFile, kind: str) -> tuple[str | None, str | None]:
    """Returns the tokens before and after a prompt: those that the file says, or else llama.cpp's defaults."""
    named = fields.special_tokens(file)
    if kind == "bert":
        return named.get("cls_token"), named.get("sep_token")
    begins = splitting_of(file).begins_with_bos if kind == "gpt2" else kind != "t5"
    bos = named.get("bos_token") if fields.value(file, "add_bos_token", begins) else None
    eos = named.get("eos_token") if fields.value(file, "add_eos_token", kind == "t5") else None
    return bos, eos


def _set_ends(tokenizer: Tokenizer, first: str | None, last: str | None, second: str) -> None:
    """Sets the tokens that `add_special_tokens` puts before and after a text; None puts none. second: what follows for
    a pair, with "last" for the last token."""
    ends = [token for token in (first, last) if token is not None]
    single = " ".join([*([f"{first}:0"] if first else []), "$A:0", *([f"{last}:0"] if last else [])])
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(ends)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} {second.replace('last', last)}" if last else f"{single} $B:1",
        special_tokens=[(token, found) for token, found in ids if found is not None],
    )
