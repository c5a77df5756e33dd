"""transformers' tokenizer of a checkpoint, for those without a form that the library reads: of the extra `torch`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.base.extras import import_extra
from appliance.text.errors import TokenizerError
from appliance.text.own_tokenizer import OwnBackend

NAME: Final = "model.tokenizer_mode: slow"


class SlowTokenizer:
    """A CustomTokenizer over transformers' classes. No code of the checkpoint is run, and nothing is fetched."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        self.special_tokens: Mapping[str, int] = {
            token.content: token_id for token_id, token in added.items() if token.special
        }

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def load_slow(folder: Path) -> OwnBackend:
    """Loads from a checkpoint's folder. Raises MissingExtraError without transformers, or TokenizerError."""
    transformers = import_extra("transformers", extra="torch", asked_by=NAME)
    try:
        found = transformers.AutoTokenizer.from_pretrained(str(folder), use_fast=False, local_files_only=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise TokenizerError(f"{NAME}: transformers reads no tokenizer there: {reason}") from error
    return OwnBackend(SlowTokenizer(found), NAME)
