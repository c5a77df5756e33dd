"""Builds the models of GGUF vocabularies: byte-level BPE, SentencePiece BPE with byte fallback, SentencePiece unigrams,
and WordPiece.

Each function returns a tokenizer without its added tokens, and raises TokenizerError for unknown variants.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from appliance.checkpoint.gguf import GgufFile
from appliance.text import gguf_fields as fields
from appliance.text.errors import TokenizerError
from appliance.text.pre_tokenizers import SPLITTINGS, Splitting

SPACE = "\u2581"  # stands for a space in SentencePiece's vocabularies, and before the first piece of a word in BERT's
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n")  # merges follow the order of tokens; no prefix space
_LONGEST_WORD = 100  # characters, as in BERT's own tokenizer; a longer word is the unknown token


def byte_level(file: GgufFile) -> Tokenizer:
    splitting = splitting_of(file)
    merges = [_pair(merge) for merge in fields.listed(file, "merges")]
    if not merges:
        raise TokenizerError(
            "this GGUF file holds a byte-level vocabulary without merges",
            hint="convert the model again, or give model.tokenizer a folder with tokenizer.json",
        )
    tokenizer = Tokenizer(models.BPE(_ids(fields.tokens(file)), merges, ignore_merges=splitting.whole_words))
    if splitting.compose:
        tokenizer.normalizer = splitting.normalizer()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def splitting_of(file: GgufFile) -> Splitting:
    """Returns how this byte-level vocabulary splits text. Raises TokenizerError for an unknown pre-tokenizer."""
    name = fields.value(file, "pre") or "default"
    if name not in SPLITTINGS:
        raise TokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not in this version",
            hint=f"known ones: {', '.join(sorted(SPLITTINGS))}; or give model.tokenizer a folder with tokenizer.json",
        )
    return SPLITTINGS[name]


def sentencepiece(file: GgufFile) -> Tokenizer:
    is_gemma = str(file.metadata.get("general.architecture", "")) in _GEMMA
    tokens = [respelled(token) if is_gemma else token for token in fields.tokens(file)]
    scores = [float(-place) for place in range(len(tokens))] if is_gemma else fields.listed(file, "scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"this GGUF file has {len(tokens)} tokens but {len(scores)} scores")
    merges = [_pair(merge) for merge in fields.listed(file, "merges")] or derived_merges(tokens, scores)
    tokenizer = Tokenizer(
        models.BPE(
            _ids(tokens),
            merges,
            unk_token=fields.special_tokens(file).get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    set_spaces(tokenizer, prefix=not is_gemma and bool(fields.value(file, "add_space_prefix", True)))
    return tokenizer


def unigram(file: GgufFile) -> Tokenizer:
    """Builds XLM-RoBERTa's tokenizer. The file has the table that its normalizer is compiled to."""
    tokens, scores = fields.tokens(file), [float(score) for score in fields.listed(file, "scores")]
    unknown = fields.value(file, "unknown_token_id", 0)
    if len(scores) != len(tokens) or not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise TokenizerError(f"this GGUF file has {len(tokens)} tokens, {len(scores)} scores and {unknown} as unknown")
    tokenizer = Tokenizer(models.Unigram(list(zip(tokens, scores, strict=True)), unknown, byte_fallback=False))
    if table := fields.listed(file, "precompiled_charsmap"):
        tokenizer.normalizer = normalizers.Precompiled(bytes(number & 255 for number in table))
    scheme = "always" if fields.value(file, "add_space_prefix", True) else "never"
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    splits_space = bool(fields.value(file, "remove_extra_whitespaces", False))
    steps = [pre_tokenizers.WhitespaceSplit(), words] if splits_space else [words]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    return tokenizer


def word_piece(file: GgufFile) -> Tokenizer:
    """Builds BERT's WordPiece. The file marks tokens that begin a word; the library marks those that continue one."""
    unknown = fields.special_tokens(file).get("unk_token", "[UNK]")
    vocabulary = {spelling: token_id for token_id, spelling in enumerate(word_pieces(file))}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=unknown,
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix="##",
        )
    )
    lowercase = bool(fields.value(file, "normalizer.lowercase", True))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=bool(fields.value(file, "normalizer.strip_accents", lowercase))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def word_pieces(file: GgufFile) -> list[str]:
    """Returns the vocabulary as BERT spells it, in the order of its ids."""
    kinds = fields.listed(file, "token_type")
    controls = {place for place, kind in enumerate(kinds) if kind == fields.CONTROL}
    return [
        token if place in controls else token.removeprefix(SPACE) if token.startswith(SPACE) else f"##{token}"
        for place, token in enumerate(fields.tokens(file))
    ]


def derived_merges(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Returns the merges that a scored vocabulary implies: every split of a token into two tokens, best score first."""
    ids = _ids(tokens)
    found: list[tuple[float, int, int, int, int]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left = ids.get(token[:cut])
            if left is not None and (right := ids.get(token[cut:])) is not None:
                found.append((-score, -cut, cut - len(token), left, right))
    found.sort()
    return [(tokens[left], tokens[right]) for *_, left, right in found]


def respelled(token: str) -> str:
    """Spells a run of spaces in a Gemma file with SPACE: the normalizer replaces spaces before tokens are matched."""
    return SPACE * len(token) if token and not token.strip(" ") else token


def set_spaces(tokenizer: Tokenizer, *, prefix: bool) -> None:
    """Sets the handling of spaces. prefix: a space is put before every text (even one that begins with a space), and
    after every special token."""
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    as_metaspace = normalizers.Replace(" ", SPACE)
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), as_metaspace])
        steps.append(decoders.Strip(content=" ", left=1))
    else:
        tokenizer.normalizer = as_metaspace
    tokenizer.decoder = decoders.Sequence(steps)


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _pair(merge: str) -> tuple[str, str]:
    """Splits a merge, two tokens with a space between them; the first may itself begin with a space."""
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]
