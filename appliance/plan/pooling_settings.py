"""Reads `model.override_pooler_config`: what vLLM's pooler config calls these settings, checked one by one."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from appliance.catalog.pooling import PoolingKind, PoolingTask
from appliance.plan.ledger import Ledger

RULE: Final = "plan/pooling"
SETTINGS: Final = "model.override_pooler_config"
STEP: Final = "step"
_KNOWN: Final = (
    "pooling_type", "normalize", "use_activation", "label_token_ids", "matryoshka_dimensions", "step_tag_id",
    "returned_token_ids", "logit_mean", "logit_sigma", "enable_chunked_processing", "max_embed_len",
)  # fmt: skip


def check_names(settings: Mapping[str, Any], ledger: Ledger) -> None:
    """Refuses settings that there are not."""
    for key in settings:
        if key not in _KNOWN:
            ledger.refuse(f"{SETTINGS}.{key}", RULE, f"there is no setting {key!r}", allowed=", ".join(_KNOWN))


def pooling_type(settings: Mapping[str, Any]) -> str | None:
    """Returns the type that is asked for, in small letters; None for none."""
    stated = settings.get("pooling_type")
    return None if stated is None else str(stated).lower()


def step_tag(settings: Mapping[str, Any], vocab_size: int, ledger: Ledger) -> int | None:
    """Returns the token that ends a step; None where the rows of all tokens are answered."""
    tag, is_step = settings.get("step_tag_id"), pooling_type(settings) == STEP
    if tag is not None and not (is_step and type(tag) is int and 0 <= tag < vocab_size):
        allowed = f"a token id below {vocab_size}, with pooling_type: STEP"
        ledger.refuse(f"{SETTINGS}.step_tag_id", RULE, f"step_tag_id is {tag!r}", allowed=allowed)
        return None
    if settings.get("returned_token_ids") is not None and not is_step:
        hint = "write pooling_type: STEP as well"
        ledger.refuse(f"{SETTINGS}.returned_token_ids", RULE, "these are the labels of STEP pooling", hint=hint)
    return tag


def logit_scale(settings: Mapping[str, Any], task: PoolingTask, ledger: Ledger) -> tuple[float, float]:
    """Returns what is taken from each logit of a class, and by what it is divided then."""
    found = []
    for key, usual in (("logit_mean", 0.0), ("logit_sigma", 1.0)):
        value = settings.get(key, usual)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        is_useless = task == "embed" or (key == "logit_sigma" and value == 0)
        if key in settings and (not is_number or is_useless):
            allowed = "a number of a model that classifies or scores; not 0 for logit_sigma"
            ledger.refuse(f"{SETTINGS}.{key}", RULE, f"{key} is {value!r}", allowed=allowed, hint=f"remove {key}")
        found.append(float(value) if is_number and not is_useless else usual)
    return found[0], found[1]


def longest_in_chunks(settings: Mapping[str, Any], task: PoolingTask, kind: PoolingKind, ledger: Ledger) -> int | None:
    """Returns the tokens of the longest input where longer ones than the context run in chunks; None where none do."""
    wanted, most = settings.get("enable_chunked_processing"), settings.get("max_embed_len")
    if wanted in (None, False) and most is None:
        return None
    path = f"{SETTINGS}.enable_chunked_processing"
    if wanted is not True:
        ledger.refuse(path, RULE, f"enable_chunked_processing is {wanted!r}", allowed="true, with max_embed_len")
    elif task != "embed" or kind != "mean":
        message = f"chunks have one mean, weighted by their tokens; a model that pools by {kind} to {task} has none"
        ledger.refuse(path, RULE, message, allowed="embedders that pool by the mean", hint="remove it")
    elif type(most) is not int or most < 1:
        message = f"max_embed_len is {most!r}; it bounds what one input may cost"
        ledger.refuse(f"{SETTINGS}.max_embed_len", RULE, message, allowed="tokens, at least 1")
    else:
        return most
    return None
