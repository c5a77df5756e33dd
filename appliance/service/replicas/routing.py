"""Which replica takes a request. Pure: what is known of each in, one of them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# What an open sequence counts, in prompt tokens to compute: its tokens share the steps of whoever comes.
SEQUENCE_TOKENS: Final = 64
# What an adapter counts that has to be written into a slot first, and may drive another one out.
ADAPTER_TOKENS: Final = 256


# What a cached token counts: a prompt that goes elsewhere is computed there, and takes the place of others twice.
_WORTH: Final = 3
# Sequences of one replica, in shares of the mean of all: affinity fills none beyond. One more is always allowed.
_MOST_SHARE: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that takes requests. worth: of what it is likely to have cached of the prompt (see Known). num_waiting:
    prompt tokens of other requests that it has to compute before. num_sequences: that are open there. has_place: one
    more would not wait. has_adapter: the request's adapter is in a slot, or it has none. last_used: rises with time.
    """

    worth: int = 0
    num_waiting: int = 0
    num_sequences: int = 0
    has_place: bool = True
    has_adapter: bool = True
    last_used: int = 0

    def cost(self) -> int:
        """Returns the work ahead of a prompt here, less what is spared: in prompt tokens."""
        adapter = 0 if self.has_adapter else ADAPTER_TOKENS
        return self.num_waiting + self.num_sequences * SEQUENCE_TOKENS + adapter - _WORTH * self.worth


def choose(candidates: Sequence[Candidate]) -> int:
    """Returns the number of the candidate where a prompt costs least; of equal ones that which was used longest ago.

    What is cached, or in a slot, draws requests to a replica until as much work waits there as is spared, or it has
    half as many sequences again as the mean. A replica where the request would wait is chosen only where it would in
    all.
    """
    assert candidates, "there is a replica that takes requests"
    mean = (sum(each.num_sequences for each in candidates) + 1) / len(candidates)
    least = min(each.num_sequences for each in candidates)
    ranked = [(not each.has_place, _is_filled(each, mean, least), each.cost(), each.last_used) for each in candidates]
    return min(range(len(ranked)), key=ranked.__getitem__)


def _is_filled(candidate: Candidate, mean: float, least: int) -> bool:
    """Returns whether one more sequence would be more than affinity may bring; never where the fewest are."""
    return candidate.num_sequences > max(least, _MOST_SHARE * mean)
