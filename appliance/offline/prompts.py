"""The forms in which callers write prompts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import numpy as np

from appliance.offline.errors import InvalidRequestError


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EmbedsPrompt(TypedDict):
    """prompt_embeds: floats [tokens, width], a numpy array or a torch tensor; see model.enable_prompt_embeds."""

    prompt_embeds: Any
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
PromptType = Prompt  # vLLM's name


class Given(NamedTuple):
    """One prompt: its text, or its tokens or embeddings with the text that they stand for where it is known.

    truncate: to so many tokens, or -1 to what the model takes; None leaves that to the parameters.
    """

    text: str | None
    token_ids: list[int] | None = None
    cache_salt: str | None = None
    truncate: int | None = None
    add_special_tokens: bool = True
    embeds: np.ndarray | None = None


_KNOWN = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", "type"})
_UNREAD = "this version reads text alone"
_REFUSED = {
    "multi_modal_data": _UNREAD,
    "multi_modal_uuids": _UNREAD,
    "mm_processor_kwargs": _UNREAD,
    "encoder_prompt": "no model here has an encoder and a decoder",
    "decoder_prompt": "no model here has an encoder and a decoder",
}


def read_prompts(
    prompts: Prompt | Sequence[Prompt], tokenization_kwargs: Mapping[str, Any] | None = None
) -> list[Given]:
    """Returns the prompts of a call, in order. tokenization_kwargs: truncate_prompt_tokens and add_special_tokens, for
    all of them. Raises InvalidRequestError with the place of one that is wrong."""
    truncate, special = read_tokenization(tokenization_kwargs)
    return [each._replace(truncate=truncate, add_special_tokens=special) for each in _several(prompts)]


def read_tokenization(given: Mapping[str, Any] | None) -> tuple[int | None, bool]:
    """Returns to how many tokens prompts are cut, and whether special tokens are added. Raises InvalidRequestError."""
    known = {"truncate_prompt_tokens", "add_special_tokens"}
    if unknown := sorted(set(given or ()) - known):
        message = f"tokenization_kwargs has {unknown[0]!r}; {' and '.join(sorted(known))} are known"
        raise InvalidRequestError(message, param="tokenization_kwargs")
    values = dict(given or {})
    return values.get("truncate_prompt_tokens"), bool(values.get("add_special_tokens", True))


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Given]:
    if isinstance(prompts, str | Mapping) or _is_tokens(prompts):
        return [read_prompt(cast(Prompt, prompts), "prompts")]
    if not isinstance(prompts, list | tuple):
        raise InvalidRequestError(f"prompts are of the type {type(prompts).__name__}; a text, token ids, or a list")
    return [read_prompt(each, f"prompts[{place}]") for place, each in enumerate(prompts)]


def read_prompt(prompt: Prompt, where: str = "prompt") -> Given:
    """Returns one prompt. Raises InvalidRequestError."""
    if isinstance(prompt, str):
        return Given(prompt)
    if isinstance(prompt, list | tuple):
        return Given(None, _tokens(prompt, where))
    if isinstance(prompt, Mapping):
        return _of_mapping(cast(Mapping[str, Any], prompt), where)
    raise InvalidRequestError(f"{where} is of the type {type(prompt).__name__}; a text, token ids or a mapping")


def _is_tokens(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, int) for each in value)


def _of_mapping(given: Mapping[str, Any], where: str) -> Given:
    for name, value in given.items():
        if name in _REFUSED and value:
            raise InvalidRequestError(f"{where} has {name!r}, and {_REFUSED[name]}", param=name)
        if name not in _KNOWN and name not in _REFUSED:
            raise InvalidRequestError(
                f"{where} has the key {str(name)[:40]!r}; prompt, prompt_token_ids and prompt_embeds are known"
            )
    text, token_ids, embeds = (given.get(name) for name in ("prompt", "prompt_token_ids", "prompt_embeds"))
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"{where}['prompt'] is of the type {type(text).__name__}; a text is expected")
    if embeds is not None:
        if token_ids is not None:
            raise InvalidRequestError(f"{where} has both 'prompt_token_ids' and 'prompt_embeds'")
        return Given(text, None, given.get("cache_salt"), embeds=_floats(embeds, where))
    if token_ids is None and text is None:
        raise InvalidRequestError(f"{where} has none of 'prompt', 'prompt_token_ids' and 'prompt_embeds'")
    tokens = None if token_ids is None else _tokens(token_ids, where)
    return Given(text, tokens, given.get("cache_salt"))


def _floats(values: Any, where: str) -> np.ndarray:
    """Returns an array of a numpy array, or of a tensor of torch, which is not imported for that."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().float().numpy()
    if not isinstance(values, np.ndarray):
        kind = type(values).__name__
        raise InvalidRequestError(f"{where}['prompt_embeds'] is of the type {kind}; an array of numpy or torch is")
    return values


def _tokens(values: Any, where: str) -> list[int]:
    if not isinstance(values, list | tuple) or not all(isinstance(each, int) for each in values):
        raise InvalidRequestError(f"{where}: token ids are a list of integers")
    if not values:
        raise InvalidRequestError(f"{where} is empty: it has no tokens")
    return list(values)
