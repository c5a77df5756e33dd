"""Sequences of models whose groups of layers have windows: what they hold, release, share and find."""

from pathlib import Path

import msgspec
import pytest

from appliance.engine.core.config import windows_of
from appliance.plan.types import EnginePlan, KvGroupPlan, MemoryPlan

from .plans import scripted_plan
from .simulator import generate
from .test_scheduler import harness, prompt


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_that_fell_out_of_every_window_are_given_back(caching: bool) -> None:
    run = harness(windows=(10,), prefix_caching=caching, max_num_batched_tokens=16)
    run.scheduler.add(b"", generate("a", prompt(40), 60))
    used = []
    while run.step():
        used.append(run.scheduler.kv.pool.num_used)
    assert max(used) <= (16 + 10) // 4 + 2  # a chunk, the window before it, and their ends
    assert max(used[10:]) <= 10 // 4 + 2
    full = harness()
    full.scheduler.add(b"", generate("a", prompt(40), 60))
    full.run()
    assert run.tokens("a") == full.tokens("a")


@pytest.mark.parametrize("caching", [True, False])
def test_used_blocks_are_counted_by_group(caching: bool) -> None:
    run = harness(windows=(6, None), prefix_caching=caching, block_size=4)
    for name in ("a", "b"):  # the second finds what the first left, where that is kept
        run.scheduler.add(b"", generate(name, prompt(40), 20))
        while run.step():
            pool = run.scheduler.kv.pool
            windowed, whole = run.scheduler.stats(0.0).blocks_used_by_group
            assert windowed + whole == pool.num_used
            run.scheduler.check_invariants()
    assert run.scheduler.stats(0.0).blocks_used_by_group == (0, 0)
    run.scheduler.add(b"", generate("c", prompt(4), 40))
    most = (0, 0)
    while run.step():
        most = max(most, run.scheduler.stats(0.0).blocks_used_by_group, key=lambda used: used[1])
    assert most[1] == 44 // 4
    assert most[0] <= 3  # the blocks of a window of six


def test_forks_share_what_the_window_still_shows() -> None:
    run = harness(windows=(6,), max_num_seqs=2, max_num_sampled=2)
    run.scheduler.add(b"", generate("r", prompt(19), 20, n=3, seed=1))  # the third waits, and its leader moves on
    run.run()
    for index in range(3):
        alone = harness(windows=(6,))
        alone.scheduler.add(b"", generate("r", prompt(19), 20, n=3, seed=1))
        alone.run()
        assert run.tokens("r", index) == alone.tokens("r", index)


def test_a_broken_sequence_leaves_nothing_to_be_found_behind_its_window() -> None:
    run = harness(windows=(6,))
    run.scheduler.add(b"", generate("bad", prompt(30), 10))
    run.step()
    run.step()
    run.runner.broken.add(0)
    run.step()
    run.runner.broken.clear()
    run.scheduler.add(b"", generate("next", prompt(30), 1))
    run.run()
    assert run.finish("next").num_cached_tokens == 0


def test_a_prefix_is_found_where_every_group_has_what_is_seen_behind_it() -> None:
    """Ten blocks of four tokens. The window of six reaches two blocks back from a boundary."""
    run = harness(windows=(6, None), block_size=4)
    run.scheduler.add(b"", generate("first", prompt(40), 1))
    run.run()
    kv = run.scheduler.kv
    run.scheduler.add(b"", generate("again", [*prompt(40), 7], 1))
    sequence = run.scheduler._books.head()
    assert sequence is not None

    def found_without(group: int, *indices: int) -> int:
        for index in indices:
            block = kv.lookup(sequence, group, index)
            assert block is not None
            kv.pool.forget(block)
        return kv.cached_prefix(sequence).num_blocks

    assert found_without(0, 0, 1, 2) == 10, "what the window has left is not asked for"
    assert kv.cached_prefix(sequence).num_dropped == [8, 0]
    assert found_without(0, 8) == 8, "at nine and ten blocks the window lacks one"
    assert found_without(1, 6) == 6, "a group without a window has them up to there"
    assert found_without(1, 4) == 0, "behind three and four blocks the window sees what was forgotten"
    run.run()
    assert run.finish("again").num_cached_tokens == 0


def test_a_long_prompt_is_admitted_by_what_its_windows_keep() -> None:
    """Of three groups one keeps 64 blocks; the pool has no room for as many of each."""
    run = harness(windows=(8, 8, None), block_size=4, num_blocks=80, max_model_len=256, max_num_batched_tokens=16)
    assert run.scheduler.config.max_sequence_len == 256
    run.scheduler.add(b"", generate("long", prompt(250), 6))
    run.run()
    roomy = harness(block_size=4, num_blocks=80, max_model_len=256)
    roomy.scheduler.add(b"", generate("long", prompt(250), 6))
    roomy.run()
    assert run.tokens("long") == roomy.tokens("long")


def test_a_prompt_alone_runs_in_chunks_that_find_blocks() -> None:
    """A step may have 256 tokens; beside the whole prompt's blocks of one group the pool has nine for the windows."""
    run = harness(windows=(8, None), block_size=4, num_blocks=73, max_model_len=256, max_num_batched_tokens=256)
    run.scheduler.add(b"", generate("long", prompt(250), 6))
    run.run()
    assert len(run.steps[0].chunks) == 1
    assert run.steps[0].num_tokens < 250
    assert len(run.tokens("long")) == 6


def test_the_windows_of_a_plan_are_those_of_its_groups(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path)
    assert windows_of(plan) == (None,)
    assert windows_of(planned(plan, 512, 128)) == (512, 128)
    assert windows_of(planned(plan, 512, None)) == (512, None)


def planned(plan: EnginePlan, *windows: int | None) -> EnginePlan:
    groups = tuple(
        KvGroupPlan(group=at, num_layers=2, num_kv_heads=1, head_dim=8, window=window, bytes_per_token=64)
        for at, window in enumerate(windows)
    )
    memory = MemoryPlan(
        device="cpu", budget_bytes=0, items=(), kv_bytes_per_token=0, kv_bytes_per_block=0, kv_groups=groups,
        num_tokens=0, num_full_sequences=0.0,
    )  # fmt: skip
    return msgspec.structs.replace(plan, memory=(memory,))
