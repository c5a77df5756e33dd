"""Checks the bounds of requests. Front ends check before they send; the engine trusts no client and checks again."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.catalog.sampling import COLUMNS, LARGEST_INTEGER
from appliance.engine.messages import Constraint, GenerateRequest, ProcessorCall, SamplingParams

MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 128
MAX_LOGIT_BIAS = 1024
MAX_CONSTRAINT = 1 << 20  # characters
MAX_CONSTRAINT_PART = 256  # characters of Constraint.whitespace and Constraint.after
MAX_PROCESSORS = 16
MAX_PROCESSOR_NAME = 256
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class InvalidSamplingError(ValueError):
    """A parameter is out of bounds. `field` names it; the message has its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {_short(value)}; it must be {allowed}")
        self.field = field


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """The bounds that a plan sets, beside those that always hold."""

    max_n: int
    max_logprobs: int  # -1: the whole vocabulary
    logits_processor_pattern: str | None = None  # which processors a request may name; None: it may name none


def validate_sampling(params: SamplingParams, vocab_size: int, limits: SamplingLimits) -> None:
    """Raises InvalidSamplingError for the first field that is out of bounds. NaN is out of every bound."""
    _whole("n", params.n, 1, limits.max_n)
    _whole("max_tokens", params.max_tokens, 1, LARGEST_INTEGER)
    _whole("min_tokens", params.min_tokens, 0, params.max_tokens, "max_tokens")
    for column in COLUMNS:
        value = getattr(params, column.name)
        if not column.bound.holds(value):
            raise InvalidSamplingError(column.name, value, column.bound.words)
    if params.seed is not None:
        _whole("seed", params.seed, -(1 << 63), (1 << 64) - 1)
    _logprobs("logprobs", params.logprobs, limits.max_logprobs)
    _logprobs("prompt_logprobs", params.prompt_logprobs, limits.max_logprobs)
    _at_most("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    _ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _logit_bias(params.logit_bias, vocab_size)
    _bad_words(params.bad_words, vocab_size)
    _processors(params.logits_processors, limits.logits_processor_pattern)
    if params.allowed_token_ids is not None:
        if not params.allowed_token_ids:
            raise InvalidSamplingError("allowed_token_ids", [], "absent, or a list of at least one token id")
        _ids("allowed_token_ids", params.allowed_token_ids, vocab_size)


def validate_request(request: GenerateRequest, vocab_size: int, limits: SamplingLimits) -> None:
    """Raises InvalidSamplingError for the first field out of bounds; `prompt` and `eos_token_ids` are fields too."""
    prompt = request.prompt_token_ids
    if prompt and not (min(prompt) >= 0 and max(prompt) < vocab_size):
        _ids("prompt", prompt, vocab_size)
    _ids("eos_token_ids", request.eos_token_ids, vocab_size)
    validate_sampling(request.sampling, vocab_size, limits)
    if request.constraint is not None:
        validate_constraint(request.constraint)


def validate_constraint(constraint: Constraint) -> None:
    """Raises InvalidSamplingError if a text is too long. The grammar back-end checks the content."""
    for text, most in (
        (constraint.source, MAX_CONSTRAINT),
        (constraint.whitespace or "", MAX_CONSTRAINT_PART),
        (constraint.after or "", MAX_CONSTRAINT_PART),
    ):
        if len(text) > most:
            raise InvalidSamplingError(constraint.field, f"a text of {len(text)}", f"at most {most} characters")


def _processors(calls: tuple[ProcessorCall, ...], pattern: str | None) -> None:
    _at_most("logits_processors", calls, MAX_PROCESSORS)
    for call in calls:
        if pattern is None:
            raise InvalidSamplingError(
                "logits_processors", call.qualname, "absent: decoding.logits_processor_pattern is not set"
            )
        is_short = len(call.qualname) <= MAX_PROCESSOR_NAME  # first: a pattern may take long over a long name
        if not (is_short and _DOTTED.fullmatch(call.qualname) and re.fullmatch(pattern, call.qualname)):
            raise InvalidSamplingError(
                "logits_processors", call.qualname, "a dotted name that decoding.logits_processor_pattern matches whole"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _whole(field: str, value: int, least: int, most: int | None, name_of_most: str = "") -> None:
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InvalidSamplingError(field, value, bound + (f" ({name_of_most})" if name_of_most else ""))


def _logprobs(field: str, value: int | None, most: int) -> None:
    if value is None or (value == -1 and most == -1):
        return
    if value < 0:
        raise InvalidSamplingError(field, value, "at least 0" if most != -1 else "at least 0, or -1 for all")
    if most != -1 and value > most:
        raise InvalidSamplingError(field, value, f"at most {most} (max_logprobs)")


def _ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidSamplingError(field, token, f"made of token ids from 0 to {vocab_size - 1}")


def _at_most(field: str, values: tuple[object, ...], most: int) -> None:
    if len(values) > most:
        raise InvalidSamplingError(field, f"a list of {len(values)}", f"a list of at most {most}")


def _logit_bias(biases: dict[int, float], vocab_size: int) -> None:
    if len(biases) > MAX_LOGIT_BIAS:
        raise InvalidSamplingError("logit_bias", f"a map of {len(biases)}", f"a map of at most {MAX_LOGIT_BIAS}")
    _ids("logit_bias", biases, vocab_size)
    for bias in biases.values():
        if math.isnan(bias) or abs(bias) > 100.0:
            raise InvalidSamplingError("logit_bias", bias, "between -100 and 100")


def _bad_words(words: tuple[tuple[int, ...], ...], vocab_size: int) -> None:
    _at_most("bad_words", words, MAX_BAD_WORDS)
    for word in words:
        if not 1 <= len(word) <= MAX_BAD_WORD_LENGTH:
            raise InvalidSamplingError("bad_words", word, f"made of 1 to {MAX_BAD_WORD_LENGTH} token ids each")
        _ids("bad_words", word, vocab_size)
