"""A drafter that knows the answers: it is right, wrong, or right half of the time."""

from collections.abc import Iterable, Sequence

from appliance.engine.step import DraftTokens


class ScriptedDrafter:
    """Proposes what follows in a known text. `kind`: right; wrong, in each token; half, in the first few tokens."""

    def __init__(self, texts: Iterable[Sequence[int]], kind: str, vocab_size: int) -> None:
        self._texts = [list(text) for text in texts]
        self._kind = kind
        self._vocab_size = vocab_size
        self._rows: dict[int, Sequence[int]] = {}
        self.num_proposed = 0

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        self._rows[row] = tokens

    def drop(self, row: int) -> None:
        del self._rows[row]

    def propose(self, row: int, most: int) -> DraftTokens | None:
        known = list(self._rows[row])
        for text in self._texts:
            if text[: len(known)] == known and len(text) > len(known):
                drafts = [self._token(token, at) for at, token in enumerate(text[len(known) : len(known) + most])]
                self.num_proposed += len(drafts)
                return DraftTokens(drafts, "scripted", len(known) % 3)
        return None

    def _token(self, token: int, at: int) -> int:
        is_right = self._kind == "right" or (self._kind == "half" and at < 2)
        return token if is_right else (token + 1) % self._vocab_size
