"""What a preempted sequence has in host memory, and what moving it costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.engine.core.times import follow
from appliance.engine.step import Moved

TRIED_AGAIN = (
    64  # each so many times that moving does not seem to pay it is tried, as what was measured may have changed
)


@dataclass(frozen=True, slots=True)
class Swapped:
    """The first `num_computed` tokens of a sequence. places[g]: of the blocks of group g, from block num_dropped[g] of
    its table on. state_places: of its recurrent states; none in a model that has none. boundaries: of the sequence."""

    num_computed: int
    num_dropped: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    state_places: tuple[int, ...]
    boundaries: tuple[int, ...]

    def every_place(self) -> Iterator[int]:
        for places in self.places:
            yield from places
        yield from self.state_places


class MoveCosts:
    """The seconds that a place of host memory takes to be stored and to be loaded: moving averages, None before any was
    measured. What was not measured is presumed to pay."""

    def __init__(self) -> None:
        self.store_s: float | None = None
        self.load_s: float | None = None
        self.token_s: float | None = None  # of a prompt's token that is computed
        self._num_refused = 0

    def learn(self, moved: Moved) -> None:
        if moved.num_stored:
            self.store_s = follow(self.store_s, moved.store_s / moved.num_stored)
        if moved.num_loaded:
            self.load_s = follow(self.load_s, moved.load_s / moved.num_loaded)

    def storing_pays(self, num_places: int, num_tokens: int) -> bool:
        """Returns whether storing and loading so many places costs less than computing so many tokens."""
        if self.store_s is None or self.load_s is None:
            return True
        return self._pays(num_places * (self.store_s + self.load_s), num_tokens)

    def loading_pays(self, num_places: int, num_tokens: int) -> bool:
        """Returns whether loading so many places costs less than computing so many tokens."""
        return self.load_s is None or self._pays(num_places * self.load_s, num_tokens)

    def _pays(self, seconds: float, num_tokens: int) -> bool:
        if self.token_s is None or seconds < num_tokens * self.token_s:
            return True
        self._num_refused += 1
        return self._num_refused % TRIED_AGAIN == 0
