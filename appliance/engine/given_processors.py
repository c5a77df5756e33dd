"""Logits processors that a caller in the engine's process gave as objects: each has a name while it is used.

A request names its processors (see processors), so that it can be sent to an engine anywhere. An object has no name
that an import would find, and gets one of this module's.
"""

import itertools
from collections.abc import Callable
from typing import Any, Final

PATTERN: Final = r"appliance\.engine\.given_processors\.given_\d+"
"""The names that `give` returns."""

_given: dict[str, Callable[..., Any]] = {}
_numbers = itertools.count()


def give(processor: Callable[..., Any]) -> str:
    """Returns a name by which requests of this process have the processor, until `take_back`."""
    name = f"given_{next(_numbers)}"
    _given[name] = processor
    return f"{__name__}.{name}"


def take_back(qualname: str) -> None:
    """Forgets what `give` named."""
    _given.pop(qualname.rpartition(".")[2], None)


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return _given[name]
    except KeyError:
        raise AttributeError(f"no logits processor was given as {name!r}") from None
