"""Which caches share block tables, and how many blocks sequences hold."""

import pytest

from appliance.program.caches import KvLayout, KvShape
from appliance.program.kv_blocks import blocks_held, longest_held


def shapes(*windows: int | None) -> list[KvShape]:
    return [KvShape(2, 64, 64, window) for window in windows]


@pytest.mark.parametrize("window", [None, 512])
def test_caches_of_one_reach_are_one_group_with_a_lane_each(window: int | None) -> None:
    layout = KvLayout.of([KvShape(heads, 64, 64, window) for heads in (1, 2, 2, 4)])
    assert layout.windows == (window,)
    assert layout.groups[0].caches == (0, 1, 2, 3)
    assert layout.lanes() == ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize(
    ("num_windowed", "num_whole", "num_lanes", "groups_windowed", "groups_whole"),
    [
        (22, 4, 4, 6, 1),  # Gemma 3 1B
        (29, 5, 5, 6, 1),  # 4B
        (40, 8, 8, 5, 1),  # 12B
        (52, 10, 10, 6, 1),  # 27B
        (13, 13, 13, 1, 1),  # Gemma 2 2B
        (12, 12, 12, 1, 1),  # gpt-oss 20B
        (30, 1, 5, 6, 1),  # one lane would make 31 groups
    ],
)
def test_lanes_leave_little_empty_where_all_is_kept(
    num_windowed: int, num_whole: int, num_lanes: int, groups_windowed: int, groups_whole: int
) -> None:
    layout = KvLayout.of(shapes(*[128] * num_windowed, *[None] * num_whole))
    assert layout.num_lanes == num_lanes
    assert layout.windows == (128,) * groups_windowed + (None,) * groups_whole
    assert sorted(cache for group in layout.groups for cache in group.caches) == list(range(num_windowed + num_whole))


def test_groups_come_in_the_order_of_their_first_caches() -> None:
    layout = KvLayout.of(shapes(8, 8, None, 8, 8, None))
    assert [(group.window, group.caches) for group in layout.groups] == [(8, (0, 1)), (None, (2, 5)), (8, (3, 4))]
    assert layout.lanes() == ((0, 2, 3), (1, 5, 4))


def test_more_reaches_than_most_groups_have_a_group_each() -> None:
    layout = KvLayout.of(shapes(*range(1, 12)))
    assert (layout.num_lanes, layout.windows) == (1, tuple(range(1, 12)))


def test_a_program_without_caches_has_no_groups() -> None:
    assert KvLayout.of([]) == KvLayout((), 0)
    assert blocks_held((), 16, 1000) == 0


def test_a_window_holds_the_blocks_that_it_may_touch() -> None:
    for window in range(1, 20):
        for length in range(1, 60):
            most = max(
                position // 4 + 1 - max(0, position - window + 1) // 4 for position in range(max(0, length - 8), length)
            )
            assert blocks_held((window,), 4, length) >= most
    assert [blocks_held((9,), 4, length) for length in (1, 4, 5, 12, 13, 1000)] == [1, 1, 2, 3, 3, 3]
    assert blocks_held((9, None, 9), 4, 1000) == 3 + 250 + 3


def test_a_chunk_lies_in_the_cache_whole_beside_what_its_first_token_sees() -> None:
    assert blocks_held((9,), 4, 1000, chunk=16) == (8 + 16 - 1 + 3) // 4 + 1
    assert blocks_held((9,), 4, 20, chunk=16) == 5  # there are no more tokens
    assert blocks_held((None,), 4, 20, chunk=16) == 5


@pytest.mark.parametrize("windows", [(None,), (7,), (7, None), (7, 30, None, None)])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_the_longest_sequence_is_the_last_that_fits(windows: tuple[int | None, ...], is_chunked: bool) -> None:
    def held(length: int) -> int:
        return blocks_held(windows, 4, length, 1 if is_chunked else length)

    for num_blocks in range(len(windows) * 4, 120, 7):
        longest = longest_held(windows, 4, num_blocks, 500, is_chunked=is_chunked)
        assert 0 < longest <= 500
        assert held(longest) <= num_blocks
        assert longest == 500 or held(longest + 1) > num_blocks
