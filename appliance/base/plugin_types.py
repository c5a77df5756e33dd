"""What each kind of plug-in is, as types. A plug-in need not import them: it is what it does."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logits: TypeAlias = npt.NDArray[np.float32]  # [V]

ResolveAdapter = Callable[[str, str], Awaitable[str | None]]
"""`lora.resolver`: (model, name) -> the folder of the adapter, or None."""


class ResolveSource(Protocol):
    """`model.resolver`: a function."""

    def __call__(self, source: str, offline: bool, /) -> str | PathLike[str] | None:
        """Returns the folder or file on this machine that a source of another scheme stands for; None if there is none.
        It may fetch it, which takes as long as it takes, but not where `offline` is true."""


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


class StoredTensor(NamedTuple):
    """dtype: as safetensors spells it, such as F32 or BF16. shape: row-major, the outermost first."""

    dtype: str
    shape: tuple[int, ...]


class WeightLoader(Protocol):
    """`loading.loader_cls`: an object that is constructed with the path of the checkpoint's folder and the options of
    `loading.model_loader_extra_config`; in the planner, and on every rank."""

    def tensors(self) -> Mapping[str, StoredTensor]:
        """Returns every tensor by the name that transformers' module has for it."""

    def read(self, name: str, /) -> "bytes | bytearray | memoryview | npt.NDArray[Any]":
        """Returns the numbers of a tensor, row-major and little-endian. Calls come one at a time, in any order, and
        may come again."""


ProposeTokens = Callable[[Sequence[int], int], Iterable[int]]
"""`speculative.drafter`: (token ids of prompt and answer, most) -> ids that may come next, by its arguments alone."""


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """A sequence that waits or runs, as a scheduling policy sees it.

    id: by which the policy names it; lower ones came first. index: among the `n` sequences of its request. priority,
    arrival_time (seconds of the client's clock) and adapter: of its request. num_computed: the tokens of prompt and
    output that are in the cache. max_output: how many tokens the output may have.
    """

    id: int
    request_id: str
    index: int
    is_running: bool
    priority: int
    arrival_time: float
    adapter: str | None
    num_prompt: int
    num_computed: int
    num_output: int
    max_output: int


@dataclass(frozen=True, slots=True)
class Worker:
    """What an extension of a rank has as `self.worker`. executable: what the rank runs of the model, an
    `appliance.kernels.interface.Executable`."""

    rank: int
    num_ranks: int
    executable: object


class SchedulingPolicy(Protocol):
    """`scheduler.scheduler_cls`: a class that is constructed once without arguments, or an object."""

    def order(self, sequences: Sequence[OpenSequence], /) -> Iterable[int]:
        """Returns the ids of all sequences. Of those that wait the first starts first, as soon as it fits; of those
        that run the last is preempted first, when the others need its blocks."""
