"""What the engine tells of preempted sequences that lie in host memory."""

import msgspec


class SwapStats(msgspec.Struct, frozen=True):
    """Figures of swapping since the start; a place of host memory holds a block, or a part of a state.

    num_swapped: sequences that lie in host memory now. Of preempted sequences: num_stored and num_loaded, which moved;
    num_computed, which were computed again because that took less time; num_without_room; num_unloaded, whose blocks
    came back other than they were stored, and which were computed again. store_s_per_place, load_s_per_place, token_s:
    the measured seconds that decide, of a place and of a computed token; None if not known yet.
    """

    num_places: int
    place_bytes: int
    num_places_used: int
    num_swapped: int
    num_stored: int
    num_loaded: int
    num_computed: int
    num_without_room: int
    num_unloaded: int
    places_stored: int
    places_loaded: int
    store_s: float
    load_s: float
    store_s_per_place: float | None
    load_s_per_place: float | None
    token_s: float | None
