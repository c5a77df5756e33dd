"""The drafter `ngram`: what followed the last tokens where they stood before, in the prompt or in the answer."""

from collections.abc import Sequence

from appliance.engine.drafting.chains import TokenChains, continuation, match_length
from appliance.engine.step import DraftTokens

SURE = 8  # tokens that match: from here on, drafts are of the highest class


class NgramDrafter:
    """Looks up the longest of the row's last n-grams, `least` <= n <= `longest`, at its latest place."""

    def __init__(self, least: int, longest: int) -> None:
        self._least = least
        self._longest = longest
        self._rows: dict[int, tuple[Sequence[int], TokenChains]] = {}

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        self._rows[row] = tokens, TokenChains(tokens, self._least)

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def propose(self, row: int, most: int) -> DraftTokens | None:
        tokens, chains = self._rows[row]
        best, length = 0, 0
        for place in chains.places():
            matched = match_length(tokens, place, tokens, self._least, self._longest)
            if matched > length:
                best, length = place, matched
                if length == self._longest:
                    break
        if not length:
            return None
        return DraftTokens(continuation(tokens, best, most), "ngram", strength_of(length))


def strength_of(length: int) -> int:
    """Returns the class of a draft after a match of so many tokens."""
    return 0 if length < 3 else 1 if length < 5 else 2 if length < SURE else 3
