"""Log-probabilities in the forms of the two APIs. Minus infinity, which JSON cannot hold, is written as -9999."""

import math
from collections.abc import Sequence
from typing import Any

from appliance.engine.messages import TokenLogprobs
from appliance.text.tokenizer import Tokenizer

LOWEST = -9999.0


class LogprobFormatter:
    """as_ids: tokens are written "token_id:17", so that tokens which are no text can be distinguished."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def chat(self, positions: Sequence[TokenLogprobs], num_top: int) -> list[dict[str, Any]]:
        """`choices[].logprobs.content`."""
        return [
            {
                **self._entry(position.token_ids[0], position.logprobs[0]),
                "top_logprobs": [
                    self._entry(token_id, logprob)
                    for token_id, logprob in list(zip(position.token_ids, position.logprobs, strict=True))[
                        1 : 1 + num_top
                    ]
                ],
            }
            for position in positions
        ]

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token_id)
        return {"token": self.token(token_id), "logprob": finite(logprob), "bytes": list(spelled)}

    def prompt(self, positions: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: for each position a map from token id to logprob, rank and text."""
        return [None if position is None else self._ranked(position) for position in positions]

    def _ranked(self, position: TokenLogprobs) -> dict[str, Any]:
        ranks = [position.rank, *range(1, len(position.token_ids))]
        found: dict[str, Any] = {}
        for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
            text = self._tokenizer.token_text(token_id)
            found.setdefault(str(token_id), {"logprob": finite(logprob), "rank": rank, "decoded_token": text})
        return found


class CompletionLogprobs:
    """`choices[].logprobs` of completions, piece by piece; `text_offset` counts characters over all pieces."""

    def __init__(self, formatter: LogprobFormatter, num_top: int) -> None:
        self._formatter = formatter
        self._num_top = num_top
        self._offset = 0

    def piece(self, positions: Sequence[TokenLogprobs | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """Returns the logprobs of a piece. A position is None if nothing predicted its token: the first of a prompt."""
        piece: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token_id, position in zip(token_ids, positions, strict=True):
            token = self._formatter.token(token_id)
            piece["text_offset"].append(self._offset)
            piece["tokens"].append(token)
            self._offset += len(token)
            piece["token_logprobs"].append(None if position is None else finite(position.logprobs[0]))
            piece["top_logprobs"].append(None if position is None else self._top(position))
        return piece

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        """The most likely, and the chosen token where it is not among them: up to num_top + 1."""
        pairs = list(zip(position.token_ids, position.logprobs, strict=True))
        ordered = [*pairs[1 : 1 + self._num_top], pairs[0]]
        return {self._formatter.token(token_id): finite(logprob) for token_id, logprob in reversed(ordered)}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST
