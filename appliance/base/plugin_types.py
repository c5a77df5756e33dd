"""What each kind of plug-in is, as types. A plug-in need not import them: it is what it does."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

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
