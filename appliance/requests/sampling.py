"""From request fields to sampling parameters: request, then the model's generation config, then the API's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.catalog.sampling import COLUMNS
from appliance.engine.messages import ProcessorCall, SamplingParams
from appliance.engine.validation import InvalidSamplingError, SamplingLimits, validate_sampling
from appliance.plan.types import EnginePlan
from appliance.requests.errors import as_api_error, invalid
from appliance.requests.fields import GenerationFields, LogitsProcessor
from appliance.service.requests import TextOptions
from appliance.text.stop_strings import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from appliance.text.tokenizer import Tokenizer

MAX_BAD_WORDS = 1024
_MAX_BAD_WORD_CHARACTERS = 1024
_ANY_TOKEN = 1 << 31  # the engine knows the model's vocabulary and refuses ids beyond it
_FROM_MODEL = tuple(column.name for column in COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthWish:
    """The wished length of an answer, and the fields to blame. default None: all that is left."""

    asked: int | None
    field: str
    prompt_field: str
    default: int | None = None


class SamplingRules:
    """The rules of the plan about sampling, applied to one request after another."""

    def __init__(self, plan: EnginePlan, tokenizer: Tokenizer) -> None:
        self._model = plan.model
        self._is_priority = plan.scheduler.policy == "priority"
        self._tokenizer = tokenizer
        self._limits = SamplingLimits(
            plan.serving.limits.max_n, plan.model.max_logprobs, plan.model.logits_processor_pattern
        )
        self._most_tokens: int | None = plan.model.default_sampling.get("max_tokens")

    def params(
        self, fields: GenerationFields, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """Raises ApiError 400 naming the field that is out of bounds."""
        chosen: dict[str, Any] = {name: self._or_model_default(name, getattr(fields, name)) for name in _FROM_MODEL}
        if chosen["top_k"] == -1:  # the older word for "all"
            chosen["top_k"] = 0
        params = SamplingParams(
            **{name: value for name, value in chosen.items() if value is not None},
            n=1 if fields.n is None else fields.n,
            max_tokens=max_tokens,
            min_tokens=fields.min_tokens or 0,
            seed=fields.seed,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            ignore_eos=fields.ignore_eos,
            logit_bias=_logit_bias(fields.logit_bias or {}),
            allowed_token_ids=None if fields.allowed_token_ids is None else tuple(fields.allowed_token_ids),
            bad_words=self._bad_words(fields.bad_words or []),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logits_processors=tuple(map(_processor_call, fields.logits_processors or ())),
        )
        try:
            validate_sampling(params, _ANY_TOKEN, self._limits)
        except InvalidSamplingError as error:
            raise as_api_error(error) from error
        return params

    def check_priority(self, fields: GenerationFields) -> int:
        if fields.priority and not self._is_priority:
            raise invalid(
                "priority", "priority must be 0: the server schedules first come, first served", "invalid_value"
            )
        if fields.priority is not None and abs(fields.priority) >= 1 << 31:
            raise invalid("priority", "priority must fit 32 bits", "invalid_value")
        return fields.priority or 0

    def max_tokens(self, wish: "LengthWish", num_prompt_tokens: int) -> int:
        """Returns how many tokens may follow this prompt. Raises ApiError 400 with the numbers when they do not fit."""
        asked, field = wish.asked, wish.field
        context = self._model.max_model_len
        if num_prompt_tokens >= context:
            raise invalid(
                wish.prompt_field,
                f"the prompt has {num_prompt_tokens} tokens; this model's context length is {context} tokens, "
                "and at least one must be left for the answer",
                "context_length_exceeded",
            )
        if asked is not None and asked < 1:
            raise invalid(field, f"{field} is {asked}; it must be at least 1", "invalid_value")
        left = context - num_prompt_tokens
        if asked is not None and asked > left:
            raise invalid(
                field,
                f"{field} is {asked} and the prompt has {num_prompt_tokens} tokens, {asked + num_prompt_tokens} in all;"
                f" this model's context length is {context} tokens",
                "context_length_exceeded",
            )
        default = left if wish.default is None else min(wish.default, left)
        wanted = default if asked is None else asked
        return wanted if self._most_tokens is None else min(wanted, self._most_tokens)

    def _or_model_default(self, name: str, asked: float | None) -> float | None:
        return asked if asked is not None else self._model.default_sampling.get(name)

    def _bad_words(self, words: list[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is and after a space, for it is another token there."""
        if len(words) > MAX_BAD_WORDS // 2:
            raise invalid(
                "bad_words", f"bad_words has {len(words)} words; {MAX_BAD_WORDS // 2} are allowed", "invalid_value"
            )
        found: dict[tuple[int, ...], None] = {}
        for place, word in enumerate(words):
            if not word.strip() or len(word) > _MAX_BAD_WORD_CHARACTERS:
                allowed = f"a word of 1 to {_MAX_BAD_WORD_CHARACTERS} characters"
                raise invalid(f"bad_words[{place}]", f"bad_words[{place}] must be {allowed}", "invalid_value")
            for spelling in (word.lstrip(), " " + word.lstrip()):
                found[tuple(self._tokenizer.encode_continuation(spelling))] = None
        return tuple(found)


def text_options(fields: GenerationFields) -> TextOptions:
    """Raises ApiError 400 for stop strings that are empty, too many or too long."""
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if len(stop) > MAX_STOP_STRINGS or sum(map(len, stop)) > MAX_STOP_CHARACTERS:
        allowed = f"{MAX_STOP_STRINGS} strings of {MAX_STOP_CHARACTERS} characters together are allowed"
        raise invalid(
            "stop", f"stop has {len(stop)} strings of {sum(map(len, stop))} characters; {allowed}", "invalid_value"
        )
    if "" in stop:
        raise invalid("stop", "stop has an empty string", "invalid_value")
    return TextOptions(
        stop=tuple(stop),
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        spaces_between_special_tokens=fields.spaces_between_special_tokens,
    )


def _processor_call(stated: str | LogitsProcessor) -> ProcessorCall:
    if isinstance(stated, str):
        return ProcessorCall(qualname=stated)
    args, kwargs = tuple(stated.args or ()), stated.kwargs or {}
    return ProcessorCall(qualname=stated.qualname, is_constructor=True, args=args, kwargs=kwargs)


def _logit_bias(stated: Mapping[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in stated.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise invalid("logit_bias", f"logit_bias has the key {key[:40]!r}; keys are token ids", "invalid_value")
        biases[int(key)] = bias
    return biases
