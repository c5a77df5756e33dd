"""What further tokens cost a step of decodes, learnt from steps that verified drafts."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

MIN_SHARE = 0.02  # of a decode's seconds that a further token is presumed to cost at least
KNOWN_SINGLY = 8  # steps of up to so many tokens are learnt one by one, larger ones by eighths of a power of two
WEIGHT_OF_SLOWER = 0.15  # of the newest step in a moving average; other work on the machine can only delay a step
WEIGHT_OF_QUICKER = 0.3
MOST_SLOWER = 2.0  # a step that took longer than this many times what was expected counts as this many times
MOST_TRUSTED = 10  # measurements of a size: further ones do not make it more certain
HALVED_BY = 0.5  # what a size's measurements count, for each one of another size since, as costs may change
LEAST_WEIGHT = 1e-6  # of measurements however old


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """The experts that a step reads. share: of the bytes that a decode of one token reads, those of its experts."""

    num_experts: int
    num_chosen: int
    share: float

    def growth(self, num_tokens: int) -> float:
        """Returns what `num_tokens` read more than one, in decodes of one, if tokens choose independently."""
        missed = (1.0 - self.num_chosen / self.num_experts) ** num_tokens
        return self.share * (self.num_experts * (1.0 - missed) / self.num_chosen - 1.0)


class _Learnt(NamedTuple):
    """Averages of the measured steps of a size class: their tokens, and their seconds beyond a step of one token."""

    tokens: float
    seconds: float
    num_steps: int
    at: int  # the number of the newest


class StepCosts:
    """The seconds that a step of T tokens takes beyond one of a single token: `beyond(1)` is 0.

    What was not measured is presumed: a token costs what one of a prompt costs, and the experts that it adds.
    """

    def __init__(self, experts: ExpertReads | None = None) -> None:
        self._experts = experts
        self._learnt: dict[int, _Learnt] = {}  # by size class
        self._num_measured = 0
        self._points: list[tuple[float, float]] = [(1.0, 0.0)]
        self.one_s = 0.0  # of a decode of one token
        self.token_s: float | None = None  # of a prompt's token

    def presume(self, one_s: float, token_s: float | None) -> None:
        self.one_s, self.token_s = one_s, token_s

    def learn(self, num_sequences: int, num_tokens: int, seconds: float, decode_s: float) -> None:
        """Learns from a step of `num_sequences` decodes that ran `num_tokens` tokens with their drafts; without them it
        would have taken `decode_s`."""
        expected = self.beyond(num_tokens)
        most = MOST_SLOWER * (decode_s + expected)
        value = max(0.0, min(seconds, most) - decode_s + self.beyond(num_sequences))
        size = _size_class(num_tokens)
        self._num_measured += 1
        known = self._learnt.get(size, _Learnt(float(num_tokens), value, 0, 0))
        weight = WEIGHT_OF_SLOWER if value > known.seconds else WEIGHT_OF_QUICKER
        self._learnt[size] = _Learnt(
            known.tokens + weight * (num_tokens - known.tokens),
            known.seconds + weight * (value - known.seconds),
            min(known.num_steps + 1, MOST_TRUSTED),
            self._num_measured,
        )
        self._points = self._ordered()

    def _ordered(self) -> list[tuple[float, float]]:
        """Returns what was learnt, by size. A step cannot take longer than a larger one. Where it seems to, the mean of
        what both have taken holds for them, by how often and how lately each was measured (isotonic regression)."""
        pools: list[tuple[list[float], float, float]] = []  # tokens of the members, mean seconds, weight
        for each in sorted(self._learnt.values()):
            members, seconds = [each.tokens], each.seconds
            weight = max(each.num_steps * HALVED_BY ** (self._num_measured - each.at), LEAST_WEIGHT)
            while pools and pools[-1][1] > seconds:
                others, mean, their_weight = pools.pop()
                members = others + members
                seconds = (their_weight * mean + weight * seconds) / (their_weight + weight)
                weight += their_weight
            pools.append((members, seconds, weight))
        return [(1.0, 0.0), *((tokens, seconds) for members, seconds, _ in pools for tokens in members)]

    def beyond(self, num_tokens: int) -> float:
        """Returns the seconds beyond a step of one token: linear between what was measured, presumed above it."""
        points = self._points
        after = bisect_left(points, (float(num_tokens), 0.0))
        if after == len(points):
            tokens, seconds = points[-1]
            return seconds + self._presumed(num_tokens) - self._presumed(tokens)
        if after == 0:
            return 0.0
        (low, low_s), (high, high_s) = points[after - 1], points[after]
        return low_s + (num_tokens - low) / (high - low) * (high_s - low_s)

    def _presumed(self, num_tokens: float) -> float:
        token_s = self.token_s or 0.0
        seconds = max(token_s, MIN_SHARE * self.one_s) * (num_tokens - 1)
        if self._experts is None:
            return seconds
        return max(seconds, self.one_s * self._experts.growth(round(num_tokens)))


def _size_class(num_tokens: int) -> int:
    if num_tokens <= KNOWN_SINGLY:
        return num_tokens
    power = num_tokens.bit_length()
    return KNOWN_SINGLY * power + (num_tokens >> max(0, power - 3))
