"""Ranks whose experts are not in order answer as one rank does."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.engine.expert_messages import expert_stats
from appliance.engine.inproc import InprocEngine
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import STAGES, TENSOR, answers, engine_of, machine_with, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

ROUND_ROBIN = "parallelism.expert_placement_strategy=round_robin"


@pytest.mark.parametrize("ranks", [TENSOR, TENSOR + STAGES])
def test_answers_are_those_of_one_rank(ranks: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    spec = spec_of("mixtral")
    with engine_of(spec) as one:
        expected = answers(one, 1)
    plan = prepare(str(spec), (*ranks, ROUND_ROBIN), machine_with(4, tmp_path), to_run=False).plan
    with InprocEngine.from_plan(plan) as several:
        assert answers(several, 1) == expected


MOVES = ("parallelism.expert=true", "parallelism.enable_eplb=true")
BALANCED = (*MOVES, "parallelism.eplb_step_interval=4")


def told_loads(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The balancedness of each line about loads."""
    lines = [record for record in caplog.records if record.getMessage() == "loads of experts"]
    return [vars(line)["appliance_fields"]["balancedness"] for line in lines]


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "gpt-oss"])
def test_experts_move_while_requests_run(
    name: str, spec_of: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers are those of one rank to the bit, whatever moved before and between their steps."""
    spec = spec_of(name)
    with engine_of(spec) as one:
        expected = [answers(one, seed) for seed in (1, 2, 3)]
    whole = prepare(str(spec)).plan.model.experts
    assert whole is not None
    copies = f"parallelism.num_redundant_experts={-whole.num_experts % 2 + 2}"
    overrides = (*TENSOR, *BALANCED, copies, "parallelism.eplb_window_size=8", "parallelism.eplb_log_balancedness=true")
    plan = prepare(str(spec), overrides, machine_with(4, tmp_path), to_run=False).plan
    with caplog.at_level(logging.INFO, "appliance.engine"), InprocEngine.from_plan(plan) as several:
        assert [answers(several, seed) for seed in (1, 2, 3)] == expected
        told = expert_stats(several._loop._runner.executable)
        assert told is not None
        assert told.num_moved >= told.num_rearranged > 0
        assert 0.5 <= told.balancedness <= 1.0
        assert told.seconds > 0
        assert several._loop._stats().experts is not None
    loads = told_loads(caplog)
    assert len(loads) >= 8  # more than one interval, a line for each step
    assert all(0.5 <= each <= 1.0 for each in loads)
    assert loads[-1] == told.balancedness


def test_experts_stay_until_an_interval_ends(
    spec_of: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is told of each step, unless the spec asks for it."""
    overrides = (*TENSOR, *MOVES, "parallelism.num_redundant_experts=2", "parallelism.eplb_step_interval=1000")
    plan = prepare(str(spec_of("mixtral")), overrides, machine_with(4, tmp_path), to_run=False).plan
    with caplog.at_level(logging.INFO, "appliance.engine"), InprocEngine.from_plan(plan) as several:
        answers(several, 1)
        told = expert_stats(several._loop._runner.executable)
    assert told is not None
    assert (told.num_rearranged, told.num_moved) == (0, 0)
    assert not told_loads(caplog)


def test_experts_that_stay_tell_nothing(spec_of: Callable[[str], Path]) -> None:
    with engine_of(spec_of("mixtral"), *TENSOR) as engine:
        assert engine._loop._stats().experts is None


def test_experts_of_stages_stay(spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="one stage has all layers"):
        prepare(str(spec_of("mixtral")), (*TENSOR, *STAGES, *BALANCED), machine_with(4, tmp_path), to_run=False)
