"""Tokenizers for text that continues earlier text.

Many tokenizers put a space before a text, so that its first word is the same token as that word elsewhere. In a
continuation that space would be wrong.
"""

import json
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers


def continuing_backend(backend: Backend) -> Backend:
    """Returns a tokenizer with the vocabulary of `backend` that puts no space before a text and no special tokens
    around it. It is `backend` itself if that puts no space either."""
    normalizer, pre_tokenizer = _state(backend.normalizer), _state(backend.pre_tokenizer)
    changed = _without_prefix(normalizer), _without_prefix(pre_tokenizer)
    if changed == (normalizer, pre_tokenizer):
        return backend
    made = Backend(backend.model)
    if changed[0] is not None:
        made.normalizer = _from_state(normalizers.Sequence([]), changed[0])
    if changed[1] is not None:
        made.pre_tokenizer = _from_state(pre_tokenizers.Sequence([]), changed[1])
    added = backend.get_added_tokens_decoder()
    made.add_tokens([added[token_id] for token_id in sorted(added)])
    made.encode_special_tokens = backend.encode_special_tokens
    return made


def _without_prefix(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a tokenizer's step without the space in front; None if the step does nothing else."""
    if state is None or state["type"] == "Prepend":
        return None
    if state["type"] == "Metaspace":
        return {**state, "prepend_scheme": "never"}
    if state["type"] == "ByteLevel":
        return {**state, "add_prefix_space": False}
    if state["type"] == "Sequence":
        name = "normalizers" if "normalizers" in state else "pretokenizers"
        steps = [_without_prefix(step) for step in state[name]]
        return {**state, name: [step for step in steps if step is not None]}
    return state


def _state(step: Any) -> dict[str, Any] | None:
    if step is None:
        return None
    found: dict[str, Any] = json.loads(step.__getstate__())
    return found


def _from_state(step: Any, state: dict[str, Any]) -> Any:
    step.__setstate__(json.dumps(state).encode())
    return step
