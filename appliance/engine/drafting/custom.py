"""The drafter `custom_class`: a function of the operator's, by its dotted path."""

import importlib
from collections.abc import Callable, Sequence

from appliance.base.errors import ApplianceError
from appliance.engine.step import DraftTokens

Propose = Callable[[Sequence[int], int], Sequence[int]]  # (tokens of prompt and answer, most) -> tokens to come


class DrafterError(ApplianceError):
    """A drafter cannot be imported, or is no function."""


def load_propose(qualname: str) -> Propose:
    """Imports a drafter. A class is constructed without arguments; its object is called. Raises DrafterError."""
    module, _, name = qualname.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
        made = found() if isinstance(found, type) else found
    except Exception as error:
        raise DrafterError(f"the drafter {qualname} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise DrafterError(
            f"the drafter {qualname} is no function", hint="write one of (tokens, most) that returns token ids"
        )
    propose: Propose = made
    return propose


class CustomDrafter:
    """Asks a function, which is to depend on its arguments alone."""

    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._rows: dict[int, Sequence[int]] = {}

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        self._rows[row] = tokens

    def drop(self, row: int) -> None:
        del self._rows[row]

    def propose(self, row: int, most: int) -> DraftTokens | None:
        drafts = [int(token) for token in self._propose(list(self._rows[row]), most)][:most]
        return DraftTokens(drafts, "custom_class") if drafts else None
