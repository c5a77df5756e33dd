"""Swapped sequences in the scheduler: what returns from host memory is what was there, and no token changes."""

from dataclasses import replace
from random import Random

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.core.swapped import TRIED_AGAIN, MoveCosts
from appliance.engine.messages import GenerateRequest
from appliance.engine.step import Moved
from appliance.engine.swap_messages import SwapStats

from .simulator import SPECULATION, Harness, generate
from .test_scheduler_properties import SHARED, drive, expected, guess, iter_seeds

WINDOWS: dict[str, tuple[int | None, ...]] = {"full": (None,), "window": (9,), "groups": (9, 9, None)}
TIGHT = SchedulerConfig(
    max_model_len=40, block_size=4, num_blocks=12, max_num_seqs=5, max_num_batched_tokens=24, max_num_sampled=5,
    expected_output=0, num_swap_places=200,
)  # fmt: skip


def crowd(draws: Random, *, has_priorities: bool) -> list[tuple[int, GenerateRequest, int | None]]:
    """More requests than the cache has room for, some of which begin alike, and some of which are aborted."""
    traffic = []
    for number in range(8):
        prompt = SHARED[: draws.choice((0, 8, 13))] + [draws.randrange(3, 99) for _ in range(draws.randrange(1, 12))]
        request = generate(
            f"r{number}", prompt, draws.randrange(6, 16), n=draws.choice((1, 1, 1, 2)), seed=number,
            priority=draws.randrange(-1, 2) if has_priorities else 0, eos=(50,),
            prompt_logprobs=draws.choice((None, None, None, 1)),
        )  # fmt: skip
        traffic.append((draws.randrange(10), request, draws.choice((None, None, None, draws.randrange(20)))))
    return sorted(traffic, key=lambda entry: entry[0])


def config(draws: Random, kind: str) -> SchedulerConfig:
    windows, block_size, has_states = WINDOWS[kind], draws.choice((2, 4)), draws.random() < 0.4
    return replace(
        TIGHT,
        windows=windows,
        num_blocks=-(-draws.choice((28, 36, 48)) // block_size) * len(windows),
        block_size=block_size,
        policy=draws.choice(("fcfs", "priority")),
        prefix_caching=draws.random() < 0.7,
        num_snapshots=draws.choice((0, 1, 4)) if has_states else None,
        num_state_places=draws.choice((1, 2)) if has_states else 0,
        num_swap_places=draws.choice((4, 30, 200)),
    )


def stats(harness: Harness) -> SwapStats:
    found = harness.scheduler.stats(0.0).swap
    assert found is not None
    return found


def check(kind: str, spoiled: float, *, has_drafts: bool = False) -> tuple[int, int]:
    """Runs 60 crowds, and holds each answer against the model's own. Returns how many sequences were loaded, and how
    many could not be."""
    loaded = unloaded = 0
    for number in range(60):
        draws = Random(number)
        limits = config(draws, kind)
        if has_drafts:
            limits = replace(limits, max_num_sampled=20, speculation=SPECULATION, num_draft_states=8)
        traffic = crowd(draws, has_priorities=limits.policy == "priority")
        propose = guess if has_drafts else lambda context, seed: []
        harness = drive(limits, traffic, propose, spoiled=spoiled, place_s=draws.choice((0.0001, 0.01)))
        found = stats(harness)
        assert (found.num_swapped, found.num_places_used) == (0, 0)
        loaded, unloaded = loaded + found.num_loaded, unloaded + found.num_unloaded
        for _, request, abort in traffic:
            for index in range(request.sampling.n):
                full = expected(request, next(iter_seeds(request, index)), limits.max_sequence_len)
                tokens = harness.tokens(request.request_id, index)
                assert tokens == (full if abort is None else full[: len(tokens)])
    return loaded, unloaded


@pytest.mark.parametrize("has_drafts", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_no_token_changes_and_no_place_leaks(kind: str, has_drafts: bool) -> None:
    loaded, unloaded = check(kind, 0.0, has_drafts=has_drafts)
    assert loaded > 15
    assert unloaded == 0


@pytest.mark.parametrize(("kind", "least"), [("full", 8), ("groups", 2)])
def test_what_was_spoiled_is_computed_again(kind: str, least: int) -> None:
    loaded, unloaded = check(kind, 0.5)
    assert loaded > unloaded > least


def test_a_sequence_returns_without_computing_what_it_had() -> None:
    """Two sequences that do not fit together: without swap space, one is computed again."""
    asked = [generate("a", range(3, 15), 20), generate("b", range(30, 42), 20)]
    computed = {}
    for num_places in (0, 200):
        harness = Harness(Scheduler(replace(TIGHT, num_swap_places=num_places, prefix_caching=False)))
        for request in asked:
            harness.scheduler.add(b"", request)
        harness.run()
        assert harness.scheduler.stats(0.0).num_preemptions == 1
        computed[num_places] = harness.runner.computed_tokens
    assert computed[200] == sum(len(request.prompt_token_ids) + 19 for request in asked)
    assert computed[0] > computed[200] + 12
    assert stats(harness).num_loaded == 1
    assert stats(harness).places_stored == stats(harness).places_loaded > 3


def test_a_block_that_the_prefix_cache_still_has_is_not_loaded() -> None:
    harness = Harness(Scheduler(replace(TIGHT, num_blocks=14)))
    for number in range(2):
        harness.scheduler.add(b"", generate(f"r{number}", [*range(3, 15), 40 + number], 27, seed=number))
    while not stats(harness).num_swapped:
        assert harness.step()
    waiting = harness.scheduler._books.head()
    assert waiting is not None
    kv, shared = harness.scheduler.kv, 12 // TIGHT.block_size
    for index in range(shared, waiting.swapped.num_computed // TIGHT.block_size):
        block = kv.lookup(waiting, 0, index)
        assert block is not None
        kv.pool.forget(block)
    harness.run()
    found = stats(harness)
    assert found.num_loaded == 1
    assert found.places_stored - found.places_loaded == shared


def test_a_sequence_that_is_aborted_while_it_is_swapped_gives_its_places_back() -> None:
    harness = Harness(Scheduler(TIGHT))
    for name, prompt in (("a", range(3, 15)), ("b", range(30, 42))):
        harness.scheduler.add(b"", generate(name, prompt, 20))
    while not stats(harness).num_swapped:
        assert harness.step()
    assert stats(harness).num_places_used > 0
    harness.gather(harness.scheduler.abort([(b"", "b")]))
    assert (stats(harness).num_swapped, stats(harness).num_places_used) == (0, 0)
    harness.run()


def test_moving_is_left_where_computing_costs_less() -> None:
    costs = MoveCosts()
    costs.token_s = 0.001
    assert costs.storing_pays(100, 1), "nothing was measured"
    costs.learn(Moved(num_stored=10, store_s=0.02, num_loaded=10, load_s=0.01))
    assert costs.storing_pays(10, 31)
    assert not costs.storing_pays(10, 29)
    assert costs.loading_pays(10, 11)
    tried = [costs.loading_pays(10, 9) for _ in range(3 * TRIED_AGAIN)]
    assert tried.count(True) == 3, "what was slow once is measured again"


def test_a_prompt_that_comes_back_otherwise_while_a_later_piece_runs_is_computed_again() -> None:
    """Two stages run two pieces of it; that the first found other bytes is known when the second has begun."""
    prompt, seen = list(range(3, 33)), list[int]()
    sizes = {"num_blocks": 40, "max_num_batched_tokens": 8, "num_lanes": 2, "prefix_caching": False}
    harness = Harness(Scheduler(replace(TIGHT, **sizes)))  # type: ignore[arg-type] # free fields
    harness.runner.spoils = lambda: True
    harness.scheduler.add(b"", generate("a", prompt, 6, seed=4))
    harness.step()
    while harness.begun:
        harness.commit()
    (sequence,) = harness.scheduler._books.running
    harness.scheduler._books.preempt(sequence)
    while harness.step():
        seen.append(harness.most_begun)
    assert stats(harness).num_unloaded == 1
    assert max(seen) == 2
    assert harness.finish("a").error is None
    assert harness.tokens("a") == expected(generate("a", prompt, 6, seed=4), 4, TIGHT.max_sequence_len)
