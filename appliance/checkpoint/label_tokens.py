"""Reads the tokens whose logits are the scores of a generation model that judges: those of its answers, yes last."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError

ORIGINAL_QWEN3: Final = "is_original_qwen3_reranker"
_NAMES: Final = "classifier_from_token"
_TOKENIZER: Final = "tokenizer.json"
_QWEN3_ANSWERS: Final = ("no", "yes")


def score_tokens(file: str, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens of a LogitScore module of sentence-transformers: no and yes, or yes alone.

    Raises CheckpointError for what is no token id.
    """
    no, yes = settings.get("false_token_id"), settings.get("true_token_id")
    found = (yes,) if no is None else (no, yes)
    if not all(type(each) is int and each >= 0 for each in found):
        raise CheckpointError(file, f"has true_token_id {yes!r} and false_token_id {no!r}, which are no token ids")
    return tuple(int(each) for each in found if each is not None)


def named_tokens(root: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that `classifier_from_token` of a config names, in its order; empty if it names none.

    Raises CheckpointError for a name that is no token of the vocabulary.
    """
    names = config.get(_NAMES, _QWEN3_ANSWERS if config.get(ORIGINAL_QWEN3) is True else None)
    if names is None:
        return ()
    if not isinstance(names, list | tuple) or not names:
        raise CheckpointError("config.json", f"{_NAMES} is {names!r}; a list of tokens is expected")
    vocabulary = _vocabulary(root)
    missing = [name for name in names if name not in vocabulary]
    if missing:
        raise CheckpointError("config.json", f"{_NAMES} has {missing[0]!r}, which is no token of {_TOKENIZER}")
    return tuple(vocabulary[name] for name in names)


def _vocabulary(root: Path) -> dict[str, int]:
    try:
        read = json.loads((root / _TOKENIZER).read_bytes())
        added = {each["content"]: int(each["id"]) for each in read.get("added_tokens", ())}
        found = read["model"]["vocab"]
        pairs = found if isinstance(found, dict) else {name: place for place, (name, _) in enumerate(found)}
        return {**pairs, **added}
    except OSError as error:
        problem = f"is needed for {_NAMES} of config.json and cannot be read: {error.strerror}"
        raise CheckpointError(_TOKENIZER, problem) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(_TOKENIZER, f"has no vocabulary for {_NAMES} of config.json") from error
