"""What each kind of plug-in is, as types. A plug-in need not import them: it is what it does."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logits: TypeAlias = npt.NDArray[np.float32]  # [V]

ResolveAdapter = Callable[[str, str], Awaitable[str | None]]
"""`lora.resolver`: (model, name) -> the folder of the adapter, or None."""


class OutputProcessor(Protocol):
    """`decoding.logits_processors`: a function, or a class that is constructed for each sequence without arguments."""

    def __call__(self, output: list[int], logits: "Logits", /) -> "Logits":
        """Returns the logits [V] of the next token; it may change those given. output: the tokens so far."""


class SequenceProcessor(Protocol):
    """The same for one that reads the prompt as well."""

    def __call__(self, prompt: list[int], output: list[int], logits: "Logits", /) -> "Logits": ...


LogitsProcessor: TypeAlias = OutputProcessor | SequenceProcessor


class MetricSample(NamedTuple):
    """One value of a figure, as /metrics has it. kind: of the figure, such as counter, gauge or histogram."""

    name: str
    kind: str
    labels: Mapping[str, str]
    value: float


class MetricsExporter(Protocol):
    """`observability.metrics.exporters`: a function, or a class that is constructed once without arguments."""

    def __call__(self, samples: Sequence[MetricSample], /) -> None:
        """Takes all figures as they are now. It is called in a thread of its own, never twice at a time."""


@runtime_checkable
class CustomTokenizer(Protocol):
    """`model.tokenizer_cls`: an object that is constructed with the path of the tokenizer's folder.

    vocab_size: every id is below it. special_tokens: the id of each control token, by its spelling.
    """

    vocab_size: int
    special_tokens: Mapping[str, int]

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """Returns the ids of a text, where control tokens may be spelled out. add_special_tokens: those around it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text, control tokens spelled out. What is no whole character ends in U+FFFD."""
