"""What a caller asks for beside the prompt: vLLM's classes, names, defaults and ranges."""

import copy
import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from appliance.catalog.sampling import COLUMNS, LARGEST_INTEGER

_TOP_K_ALL: Final = -1
_MAX_SEED: Final = (1 << 64) - 1


class RequestOutputKind(enum.Enum):
    """What each output of a stream has: everything so far, what is new, or only the whole at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """What an answer has to look like: one of json, regex, choice, grammar, json_object and structural_tag."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError unless exactly one constraint is asked for."""
        names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = f"{' and '.join(given)} were given" if given else "none was given"
            raise ValueError(f"exactly one of {', '.join(names)} is needed, and {what}")


class GuidedDecodingParams(StructuredOutputsParams):
    """The older name of StructuredOutputsParams, which vLLM had before."""


@dataclass(kw_only=True)
class SamplingParams:
    """The sampling parameters of a request, with vLLM's names and defaults.

    max_tokens: None for all that the context leaves; it is never more than that. temperature: 0 is greedy. top_k: 0 or
    -1 keeps all. logprobs: so many most likely tokens beside the chosen one; -1 is the whole vocabulary.
    logits_processors: callables (output, logits) or (prompt, output, logits) of token ids and float32 [vocabulary],
    where the engine is in this process. best_of: an older argument, which libraries still send; only n itself has a
    meaning. Raises ValueError for a value out of its range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logits_processors: list[Callable[..., Any]] | None = None
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    best_of: int | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        if self.best_of not in (None, self.n):
            message = f"best_of is {self.best_of}; ask for n={self.best_of}, and sort by cumulative_logprob"
            raise ValueError(message)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _whole(name, value, -1, LARGEST_INTEGER)
        if self.extra_args:
            raise ValueError(f"extra_args has {', '.join(map(repr, self.extra_args))}, and nothing here reads them")
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise ValueError("structured_outputs and guided_decoding are the same, and only one can be given")
        if not self.detokenize and self.stop:
            raise ValueError("stop needs the text, so that detokenize has to be True")

    def _check_ranges(self) -> None:
        _whole("n", self.n, 1, LARGEST_INTEGER)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, LARGEST_INTEGER)
        _whole("min_tokens", self.min_tokens, 0, LARGEST_INTEGER)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}; it must be at most max_tokens, {self.max_tokens}")
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << 63), _MAX_SEED)
        for column in COLUMNS:
            value = getattr(self, column.name)
            is_all = column.name == "top_k" and value == _TOP_K_ALL
            if not is_all and not column.bound.holds(value):
                raise ValueError(f"{column.name} is {value!r}; it must be {column.bound.words}")

    @classmethod
    def from_optional(cls, **values: Any) -> Self:
        """Returns parameters in which None stands for the default."""
        return cls(**{name: value for name, value in values.items() if value is not None})

    def clone(self) -> Self:
        return copy.deepcopy(self) if not self.logits_processors else copy.copy(self)


@dataclass(kw_only=True)
class BeamSearchParams:
    """The parameters of a beam search.

    A finished beam's score is its log-probability divided by its new tokens to the power of length_penalty.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        _whole("beam_width", self.beam_width, 1, LARGEST_INTEGER)
        _whole("max_tokens", self.max_tokens, 1, LARGEST_INTEGER)
        if self.temperature not in (0.0, 1.0):
            raise ValueError(f"temperature is {self.temperature}; beams are compared by the model's own probabilities")


@dataclass(kw_only=True)
class PoolingParams:
    """What is made of the numbers that a model pools.

    truncate_prompt_tokens: longer prompts are cut at their end; -1: to what the model takes. dimensions: of a vector,
    of a model that was trained to have them cut. use_activation and normalize: None is the model's own way; False
    leaves its numbers as they are.
    """

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None
    normalize: bool | None = None
    task: str | None = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.extra_kwargs:
            raise ValueError(f"extra_kwargs has {', '.join(map(repr, self.extra_kwargs))}, and nothing here reads them")

    @property
    def wants_activation(self) -> bool:
        return False not in (self.use_activation, self.activation, self.softmax, self.normalize)

    def clone(self) -> Self:
        return copy.copy(self)


@dataclass(frozen=True)
class LoRARequest:
    """An adapter in a folder of this machine. It is read when a request names it first, and kept for others.

    lora_int_id: vLLM's number of it, at least 1; here the name tells adapters apart. An adapter that the spec lists
    needs no path. base_model_name: shown in the plan as its parent, by the request that reads it.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    base_model_name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}; it must be at least 1")
        if not self.lora_name:
            raise ValueError("lora_name is empty")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id


SAMPLING_NAMES: Final = tuple(each.name for each in fields(SamplingParams))


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be an integer from {least} to {most}")
