"""The block pool: LRU order, which blocks are reused first, and which stay in the prefix cache."""

from itertools import product

import pytest

from appliance.engine.core.block_pool import BlockPool, OutOfBlocksError
from appliance.engine.core.prefix_cache import HASHERS, Hasher, PrefixNamespace, Sha256CborHasher

PLAIN = PrefixNamespace()


def test_least_recently_freed_goes_first_and_deepest_first_among_equals() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2), pool.take(2)
    for block in (*first, *second):
        pool.register(block, block)
    pool.release(reversed(first))  # a sequence gives its blocks back deepest first
    pool.release(reversed(second))
    assert [pool.take(1)[0] for _ in range(4)] == [first[1], first[0], second[1], second[0]]
    assert pool.lookup(first[0]) is None


def test_blocks_taken_together_are_in_ascending_order() -> None:
    pool = BlockPool(6)
    held = pool.take(4)
    for block in held:
        pool.register(block, block)
    pool.release(reversed(held))
    assert pool.take(4) == [2, 3, 4, 5]  # the untouched ones, then the deepest two of the others
    assert [pool.lookup(block) for block in held] == [0, 1, None, None]


def test_blocks_without_content_are_reused_before_untouched_and_cached_ones() -> None:
    pool = BlockPool(4)
    cached, plain = pool.take(2)
    pool.register(cached, 99)
    pool.release([cached, plain])
    assert pool.take(1) == [plain]
    assert pool.take(2) == [2, 3]
    assert pool.lookup(99) == cached


def test_sharing_revives_a_free_block_with_its_content() -> None:
    pool = BlockPool(3)
    block = pool.take(1)[0]
    pool.register(block, 7)
    pool.release([block])
    pool.share([block])
    pool.share([block])
    assert (pool.references(block), pool.num_free) == (2, 2)
    pool.check_invariants([[block], [block]])
    pool.release([block])
    pool.check_invariants([[block]])


def test_the_first_block_with_a_content_stays_the_cached_one() -> None:
    pool = BlockPool(2)
    one, two = pool.take(2)
    pool.register(one, 5)
    pool.register(two, 5)
    assert pool.lookup(5) == one
    pool.release([one, two])
    pool.check_invariants([])
    assert pool.take(1) == [two]


def test_taking_too_many_changes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(OutOfBlocksError):
        pool.take(3)
    pool.check_invariants([])


def test_invariants_catch_a_leak() -> None:
    pool = BlockPool(2)
    pool.take(1)
    with pytest.raises(AssertionError, match="references"):
        pool.check_invariants([])


@pytest.mark.parametrize("hasher", [make() for make in HASHERS.values()], ids=HASHERS)
def test_hash_chains_tell_prefixes_and_namespaces_apart(hasher: Hasher) -> None:
    told = [PrefixNamespace(*each) for each in product((None, "a", ""), repeat=3)]
    assert len({hasher.first(each, [1, 2]) for each in told}) == len(told) == 27
    one = hasher.first(PLAIN, [1, 2])
    assert one == hasher.first(PLAIN, [1, 2])
    apart = [one, hasher.first(PLAIN, [2, 1]), hasher.extend(one, [1, 2]), hasher.extend(one, [3, 4])]
    apart += [hasher.first(PLAIN, [1, 2], embeds) for embeds in (b"a", b"b")]
    apart += [hasher.extend(one, [1, 2], embeds) for embeds in (b"a", b"b")]
    assert len(set(apart)) == 8


def test_hashes_of_sha256_cbor_are_those_of_vllm() -> None:
    """What sha256 gives of cbor2.dumps(..., canonical=True) of the tuples that vLLM's hash_block_tokens has under
    PYTHONHASHSEED=0: (parent or sha256 of cbor of "0", tokens, (salt,) or None)."""
    hasher = Sha256CborHasher()
    one = hasher.first(PLAIN, [1, 0x17, 0x18, 0xFFF, 0x25100])
    two = hasher.extend(one, [5, 1 << 20])
    salted = hasher.first(PrefixNamespace(salt="salt"), [1])
    assert [each.hex() for each in (one, two, salted) if isinstance(each, bytes)] == [
        "4ea404903b120749a5a10606310880845b97413f7299aab8afae891a5cc06a7c",
        "1876437380ae1cdbd7cb6a4f4bd7c153d3c33694778723f022637473f2ed6e03",
        "e4065caeb2fa78fca629f5e52d4169fa57ac68190df88518f2ca79ac00e88d72",
    ]


def test_memory_is_touched_once() -> None:
    pool = BlockPool(4)
    pool.release(pool.take(2))
    assert pool.num_touched == 2
    first = pool.take(1)
    pool.register(first[0], 7)
    pool.release(first)
    assert pool.num_touched == 2, "a block without a name is taken before memory that was never used"
    pool.take(4)
    assert pool.num_touched == 4


def test_a_reserve_of_untouched_blocks_is_kept_ahead_of_what_was_taken() -> None:
    pool = BlockPool(6)
    assert [pool.touch_next(2) for _ in range(3)] == [0, 1, None]
    assert pool.num_touched == 2
    taken = pool.take(3)
    assert taken == [0, 1, 2]
    assert pool.num_touched == 3, "the third was touched by whoever took it"
    assert [pool.touch_next(2) for _ in range(3)] == [3, 4, None]
    pool.release(taken)
    assert pool.touch_next(2) is None, "blocks that came back are resident"
    assert [pool.touch_next(9) for _ in range(2)] == [5, None], "there are no more"
    assert pool.touch_next(0) is None
    pool.check_invariants([])
