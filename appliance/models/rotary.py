"""Inverse frequencies of every rotary scaling, after transformers' modeling_rope_utils."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.checkpoint.config import ConfigFacts
from appliance.checkpoint.rope import RopeFacts
from appliance.layers.spec import RopeSpec
from appliance.models.errors import ModelError

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class _Rotary:
    """What a scaling works from. base [rotary_dim / 2]: frequencies without scaling."""

    facts: RopeFacts
    base: Vector
    max_position: int  # the context the checkpoint claims, scaling included
    max_model_len: int  # the longest sequence that will run

    def number(self, key: str, default: float | None = None) -> float:
        value = self.facts.parameters.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"rotary scaling {self.facts.kind!r} needs the number {key}; the config has {value!r}")
        return float(value)

    def original_context(self, default: float) -> float:
        return self.number("original_max_position_embeddings", default)


def rope_spec(facts: RopeFacts, config: ConfigFacts, max_model_len: int) -> RopeSpec:
    """Raises ModelError for a scaling that is not the same function of position at every sequence length."""
    rotary_dim = int(config.head_dim * facts.partial_factor)
    if rotary_dim <= 0 or rotary_dim % 2 or rotary_dim > config.head_dim:
        raise ModelError(f"{rotary_dim} rotated columns of a head of {config.head_dim} do not form pairs")
    base = facts.theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    scale = _SCALINGS.get(facts.kind)
    if scale is None:
        raise ModelError(f"rotary scaling {facts.kind!r} is not in this version")
    inv_freq, factor = scale(_Rotary(facts, base, config.max_position, max_model_len))
    return RopeSpec(rotary_dim, tuple(float(np.float32(value)) for value in inv_freq), attention_factor=factor)


def _default(rotary: _Rotary) -> tuple[Vector, float]:
    return rotary.base, 1.0


def _linear(rotary: _Rotary) -> tuple[Vector, float]:
    return rotary.base / rotary.number("factor"), 1.0


def _dynamic(rotary: _Rotary) -> tuple[Vector, float]:
    """Up to the trained context it is the default; beyond it, frequencies would change as a sequence grows."""
    trained = int(rotary.max_position / rotary.number("factor"))
    if rotary.max_model_len > trained:
        raise ModelError(
            f"dynamic rotary scaling beyond {trained} tokens would change keys that are already cached",
            hint=f"set model.max_model_len to {trained} or less",
        )
    return rotary.base, 1.0


def _llama3(rotary: _Rotary) -> tuple[Vector, float]:
    factor, low, high = (rotary.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = rotary.original_context(rotary.max_position)
    turns = context * rotary.base / (2 * math.pi)  # in the original context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * rotary.base / factor + smooth * rotary.base, 1.0


def _yarn(rotary: _Rotary) -> tuple[Vector, float]:
    factor = rotary.number("factor")
    context = rotary.original_context(rotary.max_position / factor)
    dim = 2 * len(rotary.base)

    def dimension(num_turns: float) -> float:
        return dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(rotary.facts.theta))

    low, high = dimension(rotary.number("beta_fast", 32)), dimension(rotary.number("beta_slow", 1))
    if rotary.facts.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0.0, 1.0)
    return ramp * rotary.base / factor + (1 - ramp) * rotary.base, _yarn_attention_factor(rotary, factor)


def _yarn_attention_factor(rotary: _Rotary, factor: float) -> float:
    parameters = rotary.facts.parameters
    if parameters.get("attention_factor") is not None:
        return rotary.number("attention_factor")
    mscale, all_dims = rotary.number("mscale", 0.0), rotary.number("mscale_all_dim", 0.0)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return magnitude(mscale) / magnitude(all_dims) if mscale and all_dims else magnitude(1.0)


def _longrope(rotary: _Rotary) -> tuple[Vector, float]:
    """The long factors as soon as any sequence may pass the original context, for all of them (as vLLM does):
    choosing by each sequence's length would change keys that are already cached."""
    context = rotary.original_context(rotary.max_position)
    name = "long_factor" if rotary.max_model_len > context else "short_factor"
    divisors = np.asarray(rotary.facts.parameters.get(name, ()), np.float64)
    if divisors.shape != rotary.base.shape:
        raise ModelError(f"{name} has {divisors.size} values; {rotary.base.size} frequencies are rotated")
    if rotary.facts.parameters.get("attention_factor") is not None:
        return rotary.base / divisors, rotary.number("attention_factor")
    factor = rotary.number("factor", rotary.max_position / context)
    attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    return rotary.base / divisors, attention


_SCALINGS: dict[str, Callable[[_Rotary], tuple[Vector, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
