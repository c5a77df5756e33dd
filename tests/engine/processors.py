"""Logits processors as an operator would write them."""

import time

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
NOT_A_PROCESSOR = 3


def even(output: list[int], logits: Logits) -> Logits:
    """Even ids only, in place."""
    logits[1::2] = -np.inf
    return logits


def echo(prompt: list[int], output: list[int], logits: Logits) -> Logits:
    """Makes the model repeat the prompt."""
    wanted = np.full_like(logits, -np.inf)
    wanted[prompt[len(output) % len(prompt)]] = 0.0
    return wanted


class Shift:
    """Adds to one logit; `after`: not before so many tokens."""

    def __init__(self, token: int, by: float = 100.0, *, after: int = 0) -> None:
        self._token, self._by, self._after = token, by, after

    def __call__(self, output: list[int], logits: Logits) -> Logits:
        if len(output) >= self._after:
            logits[self._token] += self._by
        return logits


def fails_late(output: list[int], logits: Logits) -> Logits:
    if len(output) == 3:
        raise LookupError("no fourth token")
    return logits


def short(output: list[int], logits: Logits) -> Logits:
    return logits[:-1]


def not_numbers(output: list[int], logits: Logits) -> Logits:
    return logits * np.float32(np.nan)


def forgets(output: list[int], logits: Logits) -> None:
    logits[0] = 0.0


def forbids_all(output: list[int], logits: Logits) -> Logits:
    return np.full_like(logits, -np.inf)


def no_arguments() -> None: ...


def hangs(output: list[int], logits: Logits) -> Logits:
    while True:
        time.sleep(0.001)


class Greedy:
    """Keeps the largest logit; constructed for a sequence."""

    def __call__(self, prompt: list[int], output: list[int], logits: Logits) -> Logits:
        kept = np.full_like(logits, -np.inf)
        kept[np.argmax(logits)] = 0.0
        return kept


class OfBatches:
    """As vLLM has them."""

    def update_state(self, update: object) -> None: ...

    def apply(self, logits: object) -> object:
        return logits
