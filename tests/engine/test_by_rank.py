"""Engines whose ranks map weights that were written for them answer, sleep and change as those of a checkpoint do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.engine.inproc import InprocEngine
from appliance.engine.weight_messages import WeightStats
from appliance.loading.shard_writing import write_by_rank
from appliance.plan.prepare import Prepared, prepare
from tests.engine.test_rank_group import STAGES, TENSOR, TORCH, answers, machine_with, pytestmark, spec_of
from tests.engine.test_sleep import SLEEPS, sleep, wake
from tests.engine.test_weight_changes import SPEC as UPDATED
from tests.engine.test_weight_changes import Answers, answer, known, models, tensors

__all__ = ["models", "pytestmark", "spec_of"]

INVARIANT = "hardware.kernels.batch_invariant=true"
CASES = [
    ("llama", ()),
    ("llama", TENSOR),
    ("qwen2_moe", TENSOR + STAGES),
    ("deepseek3", TENSOR),
    ("jamba", TENSOR),
    ("qwen3_next", STAGES),
    ("qwen2_moe", (TORCH, INVARIANT, *TENSOR)),
    ("llama", (*TENSOR, "loading.max_parallel_loading_workers=1")),
]


def prepared(spec: Path, folder: Path, *overrides: str) -> Prepared:
    return prepare(spec, overrides, machine_with(4, folder), to_run=False)


def written(spec: Path, folder: Path, *overrides: str) -> Path:
    """Writes the checkpoint of a spec by rank, and returns a spec of what was written."""
    found = prepared(spec, folder, *overrides)
    write_by_rank(found.plan, found.model, folder / "state", lambda *_: None)
    own = folder / "by-rank.yaml"
    own.write_text(spec.read_text().replace(found.plan.model.path, str(folder / "state")))
    return own


@pytest.mark.parametrize(("name", "overrides"), CASES)
def test_they_answer_as_those_of_the_checkpoint(
    name: str, overrides: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path
) -> None:
    with InprocEngine.from_plan(prepared(spec_of(name), tmp_path, *overrides).plan) as engine:
        expected = answers(engine, 1)
    plan = prepared(written(spec_of(name), tmp_path, *overrides), tmp_path, *overrides, SLEEPS).plan
    assert plan.model.format == "sharded_state"
    with InprocEngine.from_plan(plan) as engine:
        assert answers(engine, 1) == expected
        for level in (1, 2):  # the second gives the weights away, and reads them again
            assert not isinstance(sleep(engine, level), str)
            assert not isinstance(wake(engine), str)
            assert answers(engine, 1) == expected


@pytest.mark.parametrize("shape", [(), TENSOR])
def test_they_take_the_weights_of_a_checkpoint(shape: tuple[str, ...], models: dict[str, Path], tmp_path: Path) -> None:
    expected = known(models, tmp_path, "auto")
    spec = tmp_path / "spec.yaml"
    spec.write_text(UPDATED.format(source=models["a"]))
    plan = prepared(written(spec, tmp_path, *shape), tmp_path, *shape).plan
    with InprocEngine.from_plan(plan) as engine:
        told = Answers(engine).updated("b", path=str(models["b"]))
        assert isinstance(told, WeightStats)
        assert [answer(engine, each) for each in range(3)] == expected["b"][:3]
        refused = Answers(engine).updated("state", path=str(tmp_path / "state"))
        assert "it was written by rank" in str(refused)
        assert isinstance(Answers(engine).updated("a", tensors=tensors(models["a"])), WeightStats)
        assert [answer(engine, each) for each in range(3)] == expected["a"][:3]
