"""Divides columns and heads among ranks."""

from itertools import pairwise

COLUMN_UNIT = 64  # where nothing else divides columns, ranks take multiples of so many: whole cache lines and tiles

# Columns of the ranks, in order, each as (start, stop) from the start of a span. Ranks may have the same columns.
Cut = tuple[tuple[int, int], ...]


class UncutError(ValueError):
    """A program cannot be divided among so many ranks."""


def even_cut(width: int, count: int, unit: int = 1) -> Cut:
    """Divides columns as evenly as multiples of `unit` allow; no rank has more than the first. Raises UncutError if one
    would get none."""
    while unit > 1 and width // unit < count:
        unit //= 2
    if width // unit < count:
        raise UncutError(f"{width} columns cannot be shared by {count} ranks")
    units = width // unit
    starts = [-(-units * rank // count) * unit for rank in range(count)]
    return tuple(pairwise([*starts, width]))


def kv_heads_cut(num_kv_heads: int, count: int) -> Cut:
    """Divides KV heads. Where there are fewer than ranks, several ranks have the same one; raises UncutError if then
    some would be had by more ranks than others."""
    if count <= num_kv_heads:
        return even_cut(num_kv_heads, count)
    if count % num_kv_heads:
        raise UncutError(f"{num_kv_heads} KV heads cannot be shared by {count} ranks")
    sharing = count // num_kv_heads
    return tuple((rank // sharing, rank // sharing + 1) for rank in range(count))


def query_heads_cut(num_heads: int, num_kv_heads: int, count: int) -> Cut:
    """Divides query heads so that each rank has those of its KV heads, or a part of those of its one."""
    each = num_heads // num_kv_heads
    if count <= num_kv_heads:
        return scaled(kv_heads_cut(num_kv_heads, count), each)
    kv, sharing = kv_heads_cut(num_kv_heads, count), count // num_kv_heads
    parts = even_cut(each, sharing)
    return tuple(
        (first * each + parts[rank % sharing][0], first * each + parts[rank % sharing][1])
        for rank, (first, _) in enumerate(kv)
    )


def scaled(cut: Cut, width: int) -> Cut:
    """Returns the columns of heads of a width."""
    return tuple((start * width, stop * width) for start, stop in cut)
