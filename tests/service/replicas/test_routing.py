"""The choice of a replica: by what is cached, by adapters and by load, on single cases and on traces."""

import random

import pytest

from appliance.service.replicas.prefixes import CHUNK_TOKENS, KnownPrefixes, chain_of
from appliance.service.replicas.routing import ADAPTER_TOKENS, SEQUENCE_TOKENS, Candidate, choose
from tests.service.replicas.traces import Conversations, Trace, request

LONG = list(range(10 * CHUNK_TOKENS))


def test_the_longest_match_draws() -> None:
    assert choose([Candidate(), Candidate(worth=640), Candidate(worth=64)]) == 1


def test_an_adapter_in_a_slot_draws() -> None:
    assert choose([Candidate(has_adapter=False), Candidate(has_adapter=True, num_sequences=1)]) == 1
    busy = ADAPTER_TOKENS // SEQUENCE_TOKENS + 1
    assert choose([Candidate(has_adapter=False), Candidate(has_adapter=True, num_sequences=busy)]) == 0


def test_load_counts_where_nothing_is_cached() -> None:
    assert choose([Candidate(num_sequences=2), Candidate(num_sequences=1), Candidate(num_sequences=3)]) == 1
    assert choose([Candidate(num_waiting=500), Candidate(num_sequences=2)]) == 1


def test_of_equal_ones_that_which_was_used_longest_ago() -> None:
    assert choose([Candidate(last_used=7), Candidate(last_used=3), Candidate(last_used=9)]) == 1


def test_affinity_overloads_none() -> None:
    hot = Candidate(worth=100_000, num_sequences=12)
    assert choose([hot, Candidate(num_sequences=8)]) == 0
    assert choose([hot, Candidate(num_sequences=2)]) == 1
    full = Candidate(worth=100_000, num_sequences=4, has_place=False)
    assert choose([full, Candidate(num_sequences=3)]) == 1
    assert choose([full, Candidate(num_sequences=4, has_place=False)]) == 0


def test_sequences_stay_bounded_whatever_is_cached() -> None:
    """Every prompt is known by replica 0 alone; none of the sequences ends."""
    counts = [0, 0, 0]
    for _ in range(300):
        counts[choose([Candidate(worth=1_000_000 * (not each), num_sequences=counts[each]) for each in range(3)])] += 1
    assert sum(counts) == 300
    assert counts[0] <= 1.5 * 100 + 2


def test_prompts_are_known_as_far_as_they_are_alike() -> None:
    known = KnownPrefixes(100 * CHUNK_TOKENS)
    known.note(chain_of(request(LONG)))
    assert known.find(chain_of(request(LONG))).num_tokens == len(LONG)
    other = [*LONG[: 3 * CHUNK_TOKENS + 5], 7, *LONG[3 * CHUNK_TOKENS + 6 :]]
    assert known.find(chain_of(request(other))).num_tokens == 3 * CHUNK_TOKENS
    for different in (request(LONG, adapter="a"), request(LONG, salt="s"), request(LONG[1:])):
        assert known.find(chain_of(different)).num_tokens == 0
    known.clear()
    assert known.find(chain_of(request(LONG))).num_tokens == 0


def test_a_beginning_of_many_prompts_is_worth_less_than_one_of_few() -> None:
    known = KnownPrefixes(1000 * CHUNK_TOKENS)
    chain = chain_of(request(LONG))
    known.note(chain)
    assert known.find(chain).worth == len(LONG)
    for _ in range(79):
        known.note(chain)
    assert known.find(chain).num_tokens == len(LONG)
    assert known.find(chain).worth == len(LONG) // 10


def test_what_was_used_longest_ago_is_forgotten_its_end_first() -> None:
    known = KnownPrefixes(15 * CHUNK_TOKENS)
    chains = [chain_of(request([number, *LONG])) for number in range(2)]
    known.note(chains[0])
    known.note(chains[1])
    assert known.find(chains[1]).num_tokens == 10 * CHUNK_TOKENS
    assert known.find(chains[0]).num_tokens == 5 * CHUNK_TOKENS
    generator = random.Random(1)
    for _ in range(200):
        known.note(chain_of(request([generator.randrange(1000) for _ in range(5 * CHUNK_TOKENS)])))
    assert len(known._uses) == 15


@pytest.mark.parametrize("at_once", [1, 4, 8, 16])
@pytest.mark.parametrize("lengths", [{}, {"shared": 20}, {"shared": 1000, "question": 200}], ids=str)
def test_conversations_find_nearly_as_much_as_in_one_engine(at_once: int, lengths: dict[str, int]) -> None:
    work = Conversations(at_once, **lengths)
    one, two = Trace(work, 1).run(), Trace(work, 2).run()
    assert 0.3 < one.hit_rate < 1.0
    assert two.hit_rate >= 0.95 * one.hit_rate
    if at_once > 1:  # one after the other is best served where what all begin with is
        assert min(two.num_requests) >= 0.4 * sum(two.num_requests)
    assert two.most <= 0.25 * at_once + 1
