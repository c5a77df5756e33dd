"""Builds a tokenizer from Mistral's tekken.json: a byte-level vocabulary by rank, and special tokens before it.

The ids are those of mistral-common: special tokens from 0 on, filled up to their stated number, then the vocabulary.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.lfs import refuse_pointer
from appliance.text.byte_alphabet import spelled
from appliance.text.errors import TokenizerError

FILE_NAME: Final = "tekken.json"
SPECIAL_TOKENS: Final = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

# Of files that list none: those of Mistral Nemo and Pixtral.
_FIRST: Final = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                 "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
                 "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
                 "[TOOL_CONTENT]")  # fmt: skip


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str  # in base 64


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def build_tokenizer(path: Path) -> Tokenizer:
    """Builds the tokenizer; a prompt begins with BOS. Raises TokenizerError for a file of another form."""
    data = path.read_bytes()
    try:
        refuse_pointer(path.name, data)
        file = msgspec.json.decode(data, type=_File)
        specials, ranks = _specials(file), _ranks(file)
    except CheckpointError as error:
        raise TokenizerError(str(error), hint=error.hint) from error
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise TokenizerError(f"{path.name} cannot be read: {error}") from error
    vocabulary = {token: rank for rank, token in enumerate(specials)}
    vocabulary |= {spelled(token): rank + len(specials) for token, rank in ranks.items()}
    merges = [(spelled(left), spelled(right)) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(file.config.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    bos = SPECIAL_TOKENS["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
    )
    return tokenizer


def _specials(file: _File) -> list[str]:
    """Returns the special tokens by id. Raises ValueError."""
    if file.special_tokens is None:
        stated = list(_FIRST)
    else:
        listed = sorted(file.special_tokens, key=lambda token: token.rank)
        if [token.rank for token in listed] != list(range(len(listed))):
            raise ValueError("special_tokens have ranks that are not 0, 1, 2 and so on")
        stated = [token.token_str for token in listed]
    number = file.config.default_num_special_tokens
    specials = stated + [f"<SPECIAL_{token_id}>" for token_id in range(len(stated), number)]
    if len(specials) != number or len(set(specials)) != number or not set(SPECIAL_TOKENS.values()) <= set(specials):
        raise ValueError(f"{len(stated)} special tokens do not fit the {number} of the config")
    return specials


def _ranks(file: _File) -> dict[bytes, int]:
    """Returns the rank of each token that the vocabulary's size leaves. Raises ValueError."""
    size = file.config.default_vocab_size - file.config.default_num_special_tokens
    kept = file.vocab[:size]
    ranks = {base64.b64decode(token.token_bytes, validate=True): token.rank for token in kept}
    if len(kept) != size or sorted(ranks.values()) != list(range(size)):
        raise ValueError(f"vocab has not the {size} tokens of different ranks that the config states")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yields every pair that is a token when joined, by the rank of that token: those that tiktoken would merge."""
    for token in sorted(ranks, key=lambda each: ranks[each]):
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
