"""Where the experts of a model are, and how many copies they have, changes no number."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.kernels.interface import KernelSet
from appliance.models.describe import describe
from appliance.program.operators import StepProgram
from appliance.program.placement import ExpertPlacing, copy_counts
from appliance.program.routing import Experts, PlaceExperts
from appliance.program.shard_layout import Shard
from appliance.program.sharding import shard_program
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.ranks import bind_ranks, check_alike, check_equal

MIXTURES = ["qwen2_moe", "mixtral", "deepseek3", "gpt-oss", "llama4", "granitemoe"]
FOUR = {"qwen2_moe", "deepseek3"}


@pytest.mark.parametrize("how", ["in turn", "with copies"])
@pytest.mark.parametrize("name", MIXTURES)
def test_places_change_nothing(name: str, how: str, tiny: Callable[[str], Checkpoint], sharing: KernelSet) -> None:
    facts, num_ranks = tiny(name).facts, 4 if name in FOUR else 2
    bounds = execution_of(max_model_len=128, num_blocks=64, tokens=64)
    one = Driver(bind(facts, sharing, execution=bounds), bounds)
    placing = ExpertPlacing("round_robin")
    if how == "with copies":
        (num_experts,) = {op.num_experts for op in program_of(facts).operators if isinstance(op, Experts)}
        placing = ExpertPlacing(num_redundant=copy_counts(num_experts, num_ranks)[1])
    placed = replace(bounds, experts=placing)
    several = Driver(bind_ranks(facts, sharing, num_ranks, placed), placed)
    check_alike(one, several, partial(check_equal, sharing))


def program_of(facts: ModelFacts) -> StepProgram:
    return describe(facts, 128).compiled.program


def test_each_rank_has_the_experts_of_its_places(tiny: Callable[[str], Checkpoint]) -> None:
    program = program_of(tiny("mixtral").facts)
    mixture = next(op for op in program.operators if isinstance(op, Experts))
    copies = mixture.num_experts  # each expert is in both ranks
    for rank in range(2):
        found = shard_program(program, Shard(rank, 2), placing=ExpertPlacing(num_redundant=copies)).program
        placed = [op for op in found.operators if isinstance(op, PlaceExperts)]
        assert [op.mixture for op in placed] == list(range(len(placed)))
        assert placed
        experts = [op for op in found.operators if isinstance(op, Experts)]
        assert [op.num_experts for op in experts] == [2 * copies] * len(placed)
        assert all(op.own == (rank * copies, (rank + 1) * copies) for op in experts)
        assert all(op.experts == each.out for op, each in zip(experts, placed, strict=True))
