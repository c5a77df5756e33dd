"""What calls return: vLLM's classes and names."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.offline.params import LoRARequest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(slots=True)
class Logprob:
    """rank: the place among all tokens by probability, from 1."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id -> log-probability: of the chosen token, and of the most likely ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One sequence of an answer. finish_reason: stop or length; None while it goes on."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds of the wall clock, and counts. None: it has not happened yet."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generation_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt. prompt: None where it was given as token ids. prompt_token_ids: None where it was given
    as embeddings."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam. tokens: those of the prompt, and the new ones. text: of all of them."""

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


@dataclass(slots=True)
class PoolingOutput:
    """data: f32 [numbers], or [tokens, numbers] of a model that pools each token."""

    data: "npt.NDArray[np.float32]"


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class PoolingRequestOutput:
    """The numbers of one prompt."""

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(slots=True)
class EmbeddingRequestOutput(PoolingRequestOutput):
    outputs: EmbeddingOutput


@dataclass(slots=True)
class ClassificationRequestOutput(PoolingRequestOutput):
    outputs: ClassificationOutput


@dataclass(slots=True)
class ScoringRequestOutput(PoolingRequestOutput):
    outputs: ScoringOutput
