"""A model that several ranks run gives what one rank gives, to the bit, for every family and mixer."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from appliance.kernels.interface import KernelSet
from appliance.models.describe import describe
from appliance.program.shard_layout import Shard
from appliance.program.sharding import shard_program
from tests.models.tiny import FAMILIES, VARIANTS
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.ranks import bind_ranks, check_alike, check_equal

NAMES = sorted(FAMILIES | VARIANTS)
FOUR = {"llama", "qwen2_moe", "deepseek3", "mamba2", "jamba", "lfm2", "kimi_linear"}  # more ranks than KV heads


@pytest.mark.parametrize("name", ["llama", "qwen2_moe", "deepseek3", "gpt-oss"])
def test_matrices_are_divided(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    """Each row of a matrix is in one rank, but for gates of one row."""
    program = describe(tiny(name).facts, 128).compiled.program
    shares = [shard_program(program, Shard(rank, 2)) for rank in range(2)]
    wholes = {
        weight for op in shares[0].program.operators for weight in op.named(op.matrices) if weight not in shares[0].rows
    }
    assert {weight for weight in wholes if not weight.endswith("shared_gate")} == set()
    for first, second in zip(*(share.rows.values() for share in shares), strict=True):
        ranges = sorted((*first.rows, *second.rows))
        assert first.source == second.source
        assert all(one[1] <= other[0] for one, other in pairwise(ranges)) or len(first.rows) == len(second.rows) == 1


@pytest.mark.parametrize("name", ["mamba", "mamba2", "jamba", "lfm2", "qwen3_next", "kimi_linear", "recurrentgemma"])
def test_states_are_divided(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    """A rank keeps half of each state; but b and c of the one group that all heads read are in each rank."""
    program = describe(tiny(name).facts, 128).compiled.program
    assert program.states
    for rank in range(2):
        states = shard_program(program, Shard(rank, 2)).program.states
        shares = [own.size_bytes / whole.size_bytes for own, whole in zip(states, program.states, strict=True)]
        assert all(0.5 <= share < 0.8 for share in shares)


@pytest.mark.many_cases
@pytest.mark.parametrize("name", NAMES)
def test_ranks_equal_one(name: str, tiny: Callable[[str], Checkpoint], sharing: KernelSet) -> None:
    facts, kernel_set = tiny(name).facts, sharing
    bounds = execution_of(max_model_len=128, num_blocks=64, tokens=64)
    one = Driver(bind(facts, kernel_set, execution=bounds), bounds)
    num_ranks = 4 if name in FOUR else 2
    two = Driver(bind_ranks(facts, kernel_set, num_ranks, bounds), bounds)
    check_alike(one, two, partial(check_equal, kernel_set))
