"""Builds a tokenizer from a SentencePiece model of Mistral's: byte-pair pieces with scores, and byte fallback."""

from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, models, processors

from appliance.base.extras import import_extra
from appliance.text.errors import TokenizerError
from appliance.text.gguf_models import derived_merges, set_spaces
from appliance.text.tekken import SPECIAL_TOKENS

_UNKNOWN: Final = SPECIAL_TOKENS["unk_token"]


def build_tokenizer(path: Path) -> Tokenizer:
    """Builds the tokenizer; a prompt begins with BOS. Raises MissingExtraError without sentencepiece, or
    TokenizerError."""
    library = import_extra("sentencepiece", extra="mistral", asked_by=f"the tokenizer {path.name}")
    try:
        pieces = library.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise TokenizerError(f"{path.name} cannot be read: {str(error).partition(chr(10))[0]}") from error
    ids = range(pieces.vocab_size())
    names = [str(pieces.id_to_piece(each)) for each in ids]
    # Control tokens and bytes are never made of characters of a text.
    merged = [each for each in ids if not _is_apart(pieces, each)]
    merges = derived_merges([names[each] for each in merged], [pieces.get_score(each) for each in merged])
    vocabulary = dict(zip(names, ids, strict=True))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=_UNKNOWN, fuse_unk=True, byte_fallback=True))
    set_spaces(tokenizer, prefix=True)
    controls = [names[each] for each in ids if pieces.is_control(each) or pieces.is_unknown(each)]
    tokenizer.add_tokens([AddedToken(each, normalized=False, special=True) for each in controls])
    bos = SPECIAL_TOKENS["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
    )
    return tokenizer


def _is_apart(pieces: Any, token_id: int) -> bool:
    return bool(
        pieces.is_control(token_id)
        or pieces.is_unknown(token_id)
        or pieces.is_byte(token_id)
        or pieces.is_unused(token_id)
    )
