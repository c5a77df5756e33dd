"""The tokens of a checkpoint by their ids, as texts: what tells whether two models speak of the same tokens."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf import open_gguf, plain

SAME_SHARE = 0.99  # of the ids that two vocabularies have, so many mean the same: others are names of rare tokens
TRANSLATED_SHARE = 0.9  # of the draft model's tokens, so many have a counterpart
_PLACEHOLDER = re.compile(r"\[PAD\d+\]|<unused\d+>|<\|?(?:reserved|extra|placeholder|dummy)\w*\|?>", re.IGNORECASE)

Relation = Literal["same", "by_text", "none"]


class Likeness(NamedTuple):
    """How the vocabulary of a draft model relates to the model's. num_shared of num_tokens tokens are the same."""

    relation: Relation
    num_shared: int
    num_tokens: int


def read_vocabulary(place: Path) -> tuple[str, ...] | None:
    """Returns the text of each token of a .gguf file, or of the tokenizer.json in a folder; None if there is none.

    Ids without a token have an empty text. Raises CheckpointError if the file is broken.
    """
    if place.suffix == ".gguf":
        with open_gguf(place) as file:
            stored = file.metadata.get("tokenizer.ggml.tokens")
            return None if stored is None else tuple(str(each) for each in plain(stored))
    path = place / "tokenizer.json" if place.is_dir() else place
    if not path.is_file():
        return None
    try:
        return _tokens(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(path.name, f"its vocabulary cannot be read: {error}") from error


def _tokens(tokenizer: dict[str, object]) -> tuple[str, ...]:
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or []
    assert isinstance(model, dict), "a tokenizer has a model"
    assert isinstance(added, list), "added tokens are a list"
    stored = model["vocab"]
    by_id = {at: each[0] for at, each in enumerate(stored)} if isinstance(stored, list) else {}
    if isinstance(stored, dict):
        by_id = {number: text for text, number in stored.items()}
    by_id |= {each["id"]: each["content"] for each in added}
    return tuple(by_id.get(number, "") for number in range(max(by_id, default=-1) + 1))


def compare(target: Sequence[str], draft: Sequence[str]) -> Likeness:
    """Compares the vocabulary of a model with that of one that drafts for it."""
    pairs = [(ours, theirs) for ours, theirs in zip(target, draft, strict=False) if _is_real(ours) and _is_real(theirs)]
    num_equal = sum(ours == theirs for ours, theirs in pairs)
    if pairs and num_equal >= SAME_SHARE * len(pairs):
        return Likeness("same", num_equal, len(pairs))
    texts = {text for text in target if _is_real(text)}
    real = [text for text in draft if _is_real(text)]
    num_shared = sum(text in texts for text in real)
    fits = bool(real) and num_shared >= TRANSLATED_SHARE * len(real)
    return Likeness("by_text" if fits else "none", num_shared, len(real))


def _is_real(text: str) -> bool:
    return bool(text) and _PLACEHOLDER.fullmatch(text) is None
