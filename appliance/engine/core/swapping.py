"""Swap space: the places of host memory in which preempted sequences leave their blocks and states."""

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.engine.core.kv_manager import KvManager
from appliance.engine.core.sequence import Sequence
from appliance.engine.core.swapped import MoveCosts, Swapped
from appliance.engine.step import BlockMove, Moved
from appliance.engine.swap_messages import SwapStats


@dataclass(frozen=True, slots=True)
class Found:
    """Which blocks of a swapped sequence the prefix cache still has, of each group, from the first that is not dropped
    on; None for one that must be loaded."""

    blocks: list[list[int | None]]
    num_state_places: int

    @property
    def shared(self) -> list[int]:
        return [block for blocks in self.blocks for block in blocks if block is not None]

    @property
    def num_loads(self) -> int:
        """The places to load."""
        return sum(blocks.count(None) for blocks in self.blocks) + self.num_state_places


class SwapSpace:
    """A place holds a block, or a part of a state. A plan's stores run before its loads, and a place that it loads is
    free only for the next plan: `settle` begins a plan."""

    def __init__(self, kv: KvManager, num_places: int, num_state_places: int, place_bytes: int = 0) -> None:
        """`num_state_places`: how many places the states of a sequence take; 0 for a model without states.
        `place_bytes` is told in the statistics."""
        self._place_bytes = place_bytes
        self._kv = kv
        self._num_places = num_places
        self._num_state_places = num_state_places
        self._free = list(range(num_places - 1, -1, -1))
        self._loading: list[int] = []  # by the plan that is being made
        self._stores: list[BlockMove] = []
        self.costs = MoveCosts()
        self._num_swapped = 0
        self._num_stored = self._num_loaded = self._num_unloaded = 0
        self._num_computed = self._num_without_room = 0
        self._moved = Moved()

    def settle(self, token_s: float | None) -> None:
        """Begins a plan. token_s: the seconds of a prompt's token that is computed; None if that is not known."""
        self._free += self._loading
        self._loading = []
        self.costs.token_s = token_s

    def store(self, sequence: Sequence) -> None:
        """Plans to store what a sequence that is preempted has in the cache, if that can be and pays. It still has its
        row and its blocks."""
        if not sequence.num_computed or sequence.prompt_logprobs_left is not None:
            return  # the logits of a whole prompt are wanted, so it is computed in any case
        self._kv.slide(sequence)
        end = self._kv.blocks_for(sequence.num_computed)
        tables = [table[first:end] for table, first in zip(sequence.tables, sequence.num_dropped, strict=True)]
        count = sum(map(len, tables)) + self._num_state_places
        if not self.costs.storing_pays(count, sequence.num_computed):
            self._num_computed += 1
        elif count > len(self._free):
            self._num_without_room += 1
        else:
            self._store(sequence, tables)

    def _store(self, sequence: Sequence, tables: list[list[int]]) -> None:
        places = tuple(tuple(self._free.pop() for _ in table) for table in tables)
        state_places = tuple(self._free.pop() for _ in range(self._num_state_places))
        sequence.swapped = Swapped(
            sequence.num_computed, tuple(sequence.num_dropped), places, state_places, tuple(sequence.boundaries)
        )
        slot = sequence.row if sequence.resumes_from is None else sequence.resumes_from
        self._stores.append(_move(sequence.row, tables, places, slot, state_places))
        self._num_swapped += 1
        self._num_stored += 1

    def take_stores(self) -> tuple[BlockMove, ...]:
        """Returns what was to be stored since the last call."""
        stores, self._stores = tuple(self._stores), []
        return stores

    def find(self, sequence: Sequence) -> Found:
        """Returns which blocks of a swapped sequence need not be loaded."""
        swapped, kv = _swapped(sequence), self._kv
        num_whole = swapped.num_computed // kv.block_size if kv.prefix_caching else 0
        blocks = [
            [kv.lookup(sequence, group, index) if index < num_whole else None for index in range(first, first + count)]
            for group, (first, count) in enumerate(zip(swapped.num_dropped, map(len, swapped.places), strict=True))
        ]
        return Found(blocks, len(swapped.state_places))

    def is_worth_loading(self, sequence: Sequence, num_cached: int) -> bool:
        """Returns whether a swapped sequence should be loaded, rather than computed from token `num_cached` on."""
        num_tokens = _swapped(sequence).num_computed - num_cached
        return num_tokens > 0 and self.costs.loading_pays(self.find(sequence).num_loads, num_tokens)

    def load(self, sequence: Sequence, found: Found) -> BlockMove:
        """Gives a swapped sequence, which has its row, its blocks again. The caller has checked that they are free."""
        swapped, pool = _swapped(sequence), self._kv.pool
        pool.share(found.shared)
        loaded: list[list[int]] = []
        sequence.tables = []
        for group, (blocks, first) in enumerate(zip(found.blocks, swapped.num_dropped, strict=True)):
            taken = pool.take(blocks.count(None), group)
            fresh = iter(taken)
            sequence.tables.append([0] * first + [next(fresh) if block is None else block for block in blocks])
            loaded.append(taken)
        sequence.num_dropped = list(swapped.num_dropped)
        sequence.num_blocks = self._kv.blocks_for(swapped.num_computed)
        sequence.num_computed = swapped.num_computed
        sequence.boundaries = list(swapped.boundaries)
        places = tuple(
            tuple(place for place, block in zip(own, blocks, strict=True) if block is None)
            for own, blocks in zip(swapped.places, found.blocks, strict=True)
        )
        self._loading += swapped.every_place()
        self._forget(sequence)
        self._num_loaded += 1
        return _move(sequence.row, loaded, places, sequence.row, swapped.state_places)

    def drop(self, sequence: Sequence, *, is_computed: bool = False) -> None:
        """Frees what a sequence has in host memory, if anything. `is_computed`: its tokens are computed instead."""
        if sequence.swapped is not None:
            self._free += sequence.swapped.every_place()
            self._forget(sequence)
            self._num_computed += is_computed

    def _forget(self, sequence: Sequence) -> None:
        sequence.swapped = None
        self._num_swapped -= 1

    def learn(self, moved: Moved) -> None:
        """Takes what the moves of a step took."""
        self.costs.learn(moved)
        self._num_unloaded += len(moved.unloaded)
        before = self._moved
        self._moved = Moved(
            before.num_stored + moved.num_stored,
            before.store_s + moved.store_s,
            before.num_loaded + moved.num_loaded,
            before.load_s + moved.load_s,
        )

    def stats(self) -> SwapStats:
        costs, moved = self.costs, self._moved
        return SwapStats(
            num_places=self._num_places,
            place_bytes=self._place_bytes,
            num_places_used=self._num_places - len(self._free) - len(self._loading),
            num_swapped=self._num_swapped,
            num_stored=self._num_stored,
            num_loaded=self._num_loaded,
            num_computed=self._num_computed,
            num_without_room=self._num_without_room,
            num_unloaded=self._num_unloaded,
            places_stored=moved.num_stored,
            places_loaded=moved.num_loaded,
            store_s=moved.store_s,
            load_s=moved.load_s,
            store_s_per_place=costs.store_s,
            load_s_per_place=costs.load_s,
            token_s=costs.token_s,
        )

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError when the books contradict themselves. For tests only."""
        swapped = [each.swapped for each in sequences if each.swapped is not None]
        held = [place for each in swapped for place in each.every_place()]
        assert sorted([*self._free, *self._loading, *held]) == [*range(self._num_places)], "a place leaked"
        assert self._num_swapped == len(swapped), "count of swapped sequences differs"


def _swapped(sequence: Sequence) -> Swapped:
    assert sequence.swapped is not None, "the caller has looked"
    return sequence.swapped


def _move(
    row: int,
    blocks: Iterable[Iterable[int]],
    places: Iterable[Iterable[int]],
    slot: int,
    state_places: tuple[int, ...],
) -> BlockMove:
    return BlockMove(
        row,
        tuple(block for of_group in blocks for block in of_group),
        tuple(place for of_group in places for place in of_group),
        slot if state_places else None,
        state_places,
    )
