"""Describes every rotary scaling as data, after transformers' modeling_rope_utils."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from appliance.checkpoint.config import ConfigFacts
from appliance.checkpoint.rope import RopeFacts
from appliance.layers.rope import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    ProportionalScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from appliance.models.errors import ModelError, Problem


class _Rotary(msgspec.Struct, frozen=True):
    """The inputs of a scaling."""

    facts: RopeFacts
    rotary_dim: int
    max_position: int  # the checkpoint's context length, scaling included
    max_model_len: int  # the longest sequence that will run

    def number(self, key: str, default: float | None = None) -> float:
        value = self.facts.parameters.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(_missing(self.facts, key))
        return float(value)

    def original_context(self, default: float) -> float:
        return self.number("original_max_position_embeddings", default)


def rope_spec(facts: RopeFacts, config: ConfigFacts, max_model_len: int) -> RopeSpec:
    """Returns the rotation. Raises ModelError, with all problems, for numbers that give no rotation, and for a scaling
    that is not the same function of the position for every sequence length."""
    share = 1.0 if facts.kind == "proportional" else facts.partial_factor
    rotary = _Rotary(facts, int(config.head_dim * share), config.max_position, max_model_len)
    problems = tuple(_problems(rotary, config.head_dim))
    if problems:
        raise ModelError(*problems)
    try:
        scaling, attention_factor = _SCALINGS[facts.kind].make(rotary)
    except (ArithmeticError, ValueError) as error:  # a logarithm of zero, or a division by zero
        message = f"rotary scaling {facts.kind!r} gives no frequencies with {facts.parameters} and theta {facts.theta}"
        raise ModelError(Problem(message, "rotary")) from error
    return RopeSpec(rotary.rotary_dim, facts.theta, scaling, attention_factor=attention_factor)


def _problems(rotary: _Rotary, head_dim: int) -> Iterator[Problem]:
    facts, columns = rotary.facts, rotary.rotary_dim
    if columns <= 0 or columns % 2 or columns > head_dim:
        yield Problem(f"{columns} rotated columns of a head of {head_dim} do not form pairs", "rotary")
    if facts.theta <= 0:
        yield Problem(f"rope_theta is {facts.theta:g}; a number above 0 is expected", "rotary")
    kind = _SCALINGS.get(facts.kind)
    if kind is None:
        message = f"rotary scaling {facts.kind!r} is not in this version"
        yield Problem(message, "rotary", allowed=", ".join(_SCALINGS))
        return
    missing = [name for name in kind.numbers if not _is_positive(facts.parameters.get(name))]
    yield from (_missing(facts, name) for name in missing)
    if not missing:
        yield from kind.problems(rotary)


def _missing(facts: RopeFacts, name: str) -> Problem:
    has = facts.parameters.get(name)
    message = f"rotary scaling {facts.kind!r} needs the number {name}; the config has {has!r}"
    return Problem(message, "rotary", allowed="a number above 0")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _no_problems(_: _Rotary) -> Iterator[Problem]:
    yield from ()


def _default(_: _Rotary) -> tuple[RopeScaling | None, float]:
    return None, 1.0


def _linear(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    return LinearScaling(rotary.number("factor")), 1.0


def _dynamic(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    """Hunyuan states a factor alpha for all lengths, with which theta becomes theta * alpha^(d / (d - 2))."""
    alpha = rotary.facts.parameters.get("alpha")
    if not alpha:
        return None, 1.0
    dim = rotary.rotary_dim
    return DivisorScaling(tuple(rotary.number("alpha") ** (2 * pair / (dim - 2)) for pair in range(dim // 2))), 1.0


def _dynamic_problems(rotary: _Rotary) -> Iterator[Problem]:
    """Refuses lengths beyond the trained context, where frequencies would change as a sequence grows. Up to it, the
    rotation is the default one."""
    if rotary.facts.parameters.get("alpha"):
        return
    trained = int(rotary.max_position / rotary.number("factor"))
    if rotary.max_model_len > trained:
        yield Problem(
            f"dynamic rotary scaling beyond {trained} tokens would change keys that are already cached",
            "context",
            allowed=f"at most {trained}",
            hint=f"set model.max_model_len to {trained} or less",
        )


def _llama3(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    factor, low, high = (rotary.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    return Llama3Scaling(factor, low, high, rotary.original_context(rotary.max_position)), 1.0


def _llama3_problems(rotary: _Rotary) -> Iterator[Problem]:
    low, high = rotary.number("low_freq_factor"), rotary.number("high_freq_factor")
    if not low < high:
        message = f"rotary scaling 'llama3' has low_freq_factor {low:g} and high_freq_factor {high:g}"
        yield Problem(f"{message}; the first is the smaller one", "rotary")


def _yarn(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    factor = rotary.number("factor")
    context = rotary.original_context(rotary.max_position / factor)
    dim = rotary.rotary_dim

    def dimension(num_turns: float) -> float:
        return dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(rotary.facts.theta))

    low, high = dimension(rotary.number("beta_fast", 32)), dimension(rotary.number("beta_slow", 1))
    if rotary.facts.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    return YarnScaling(factor, max(low, 0), min(high, dim - 1)), _yarn_attention_factor(rotary, factor)


def _yarn_attention_factor(rotary: _Rotary, factor: float) -> float:
    parameters = rotary.facts.parameters
    if parameters.get("attention_factor") is not None:
        return rotary.number("attention_factor")
    mscale, all_dims = rotary.number("mscale", 0.0), rotary.number("mscale_all_dim", 0.0)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return magnitude(mscale) / magnitude(all_dims) if mscale and all_dims else magnitude(1.0)


def _longrope(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    """Takes the long factors for all sequences if any may exceed the original context (as vLLM does): a choice by each
    sequence's length would change keys that are already cached."""
    context = rotary.original_context(rotary.max_position)
    size = "long" if rotary.max_model_len > context else "short"
    scaling = DivisorScaling(tuple(map(float, rotary.facts.parameters[f"{size}_factor"])))
    if rotary.facts.parameters.get(f"{size}_mscale") is not None:  # of Phi-3.5-MoE
        return scaling, rotary.number(f"{size}_mscale")
    if rotary.facts.parameters.get("attention_factor") is not None:
        return scaling, rotary.number("attention_factor")
    factor = rotary.number("factor", rotary.max_position / context)
    return scaling, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))


def _longrope_problems(rotary: _Rotary) -> Iterator[Problem]:
    for name in ("long_factor", "short_factor"):
        values, wanted = rotary.facts.parameters.get(name), rotary.rotary_dim // 2
        is_list = isinstance(values, list | tuple) and all(map(_is_positive, values))
        if values is not None and not is_list:
            yield Problem(f"{name} is {values!r}; a list of numbers above 0 is expected", "rotary")
        elif len(values or ()) != wanted:
            yield Problem(f"{name} has {len(values or ())} values; {wanted} frequencies are rotated", "rotary")


def _proportional(rotary: _Rotary) -> tuple[RopeScaling | None, float]:
    """All columns form pairs, of which the first partial_rotary_factor rotate (Gemma 4)."""
    num_rotated = int(rotary.facts.partial_factor * rotary.rotary_dim // 2)
    return ProportionalScaling(num_rotated, rotary.number("factor", 1.0)), 1.0


class _Scaling(NamedTuple):
    """One kind of scaling: its constructor, the numbers that it requires, and further checks."""

    make: Callable[[_Rotary], tuple[RopeScaling | None, float]]
    numbers: tuple[str, ...] = ()
    problems: Callable[[_Rotary], Iterator[Problem]] = _no_problems


_SCALINGS: dict[str, _Scaling] = {
    "default": _Scaling(_default),
    "linear": _Scaling(_linear, ("factor",)),
    "dynamic": _Scaling(_dynamic, ("factor",), _dynamic_problems),
    "llama3": _Scaling(_llama3, ("factor", "low_freq_factor", "high_freq_factor"), _llama3_problems),
    "proportional": _Scaling(_proportional),
    "yarn": _Scaling(_yarn, ("factor",)),
    "longrope": _Scaling(_longrope, (), _longrope_problems),
}
