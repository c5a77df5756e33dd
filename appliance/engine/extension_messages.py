"""What the ranks of an engine are asked to call of the operator's own, and what they answer."""

from typing import Any, Final

import msgspec

MOST_CALL_S: Final = 30.0  # tokens wait meanwhile


class ExtensionCall(msgspec.Struct, frozen=True):
    """A method of `parallelism.worker_extension_cls`, for every rank. args and kwargs: values of JSON."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout_s: float = 10.0


class ExtensionAnswer(msgspec.Struct, frozen=True):
    """What a rank returned, or why it did not. is_unknown: the class has no such method."""

    value: Any = None
    error: str | None = None
    is_unknown: bool = False
