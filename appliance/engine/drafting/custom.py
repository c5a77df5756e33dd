"""The drafter `custom_class`: a function of the operator's, by its dotted path."""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from appliance.base.bounded import BoundedCalls
from appliance.base.plugin_types import ProposeTokens
from appliance.base.plugins import PluginError, made_plugin
from appliance.engine.step import DraftTokens

FIELD: Final = "speculative.drafter"
DRAFT_TIMEOUT_S: Final = 1.0  # of one row, while which nothing runs


def load_propose(path: str) -> ProposeTokens:
    """Imports a drafter. A class is constructed without arguments; its object is called. Raises PluginError."""
    made = made_plugin(path, FIELD)
    if not callable(made):
        raise PluginError(f"{FIELD}: {path} is no function", hint="write one of (tokens, most) that returns token ids")
    propose: ProposeTokens = made
    return propose


class CustomDrafter:
    """Asks a function, which is to depend on its arguments alone. What it raises, `propose` raises; it raises
    TookTooLongError where the function is late."""

    def __init__(self, propose: ProposeTokens, timeout_s: float = DRAFT_TIMEOUT_S) -> None:
        self._propose, self._calls = propose, BoundedCalls(timeout_s)
        self._rows: dict[int, Sequence[int]] = {}

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        self._rows[row] = tokens

    def drop(self, row: int) -> None:
        del self._rows[row]

    def propose(self, row: int, most: int) -> DraftTokens | None:
        tokens = list(self._rows[row])
        drafts = self._calls.run(FIELD, lambda: [int(token) for token in islice(self._propose(tokens, most), most)])
        return DraftTokens(drafts, "custom_class") if drafts else None
