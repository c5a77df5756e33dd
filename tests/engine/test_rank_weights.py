"""New weights of several ranks: all have them, to the bit of a fresh engine, or all keep the old ones."""

import os
import signal
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.engine.inproc import InprocEngine
from appliance.engine.ranks.followers import RankFailedError
from appliance.engine.ranks.group import RankGroup
from appliance.engine.ranks.messages import RankStaged
from appliance.engine.weight_messages import WeightStats
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import STAGES, TENSOR, machine_with, rank_processes
from tests.engine.test_weight_changes import SPEC, Answers, answer, copied, known, models, stats, tensors
from tests.models.tiny import make_tiny

__all__ = ["models"]

NUM_PROMPTS = 4
SHAPES = {"tensor": TENSOR, "stages": STAGES, "both": TENSOR + STAGES}
CASES = [("auto", "tensor"), ("auto", "stages"), ("auto", "both"), ("torch", "tensor"), ("torch", "stages")]


def group_of(model: Path, folder: Path, kernel_set: str, shape: str) -> InprocEngine:
    """An engine of several ranks, on a machine that has as many cores."""
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(source=model))
    chosen = ("hardware.kernels.kernel_set=torch", "hardware.kernels.batch_invariant=true")
    overrides = (*SHAPES[shape], *(() if kernel_set == "auto" else chosen))
    return InprocEngine.from_plan(prepare(spec, overrides, machine_with(4, folder), to_run=False).plan)


@pytest.mark.parametrize(("kernel_set", "shape"), CASES)
def test_after_an_update_all_ranks_have_the_new_weights(
    kernel_set: str, shape: str, models: dict[str, Path], tmp_path: Path
) -> None:
    expected = known(models, tmp_path, kernel_set)
    is_quick = kernel_set == "auto"  # the other's ranks wait for each other at every collective
    rounds, num_prompts, beside = (("b", "a", "b"), NUM_PROMPTS, 40) if is_quick else (("b",), 1, 12)
    with group_of(models["a"], tmp_path, kernel_set, shape) as engine:
        answers = Answers(engine)
        for number, name in enumerate(rounds):
            answers.ask("beside", 0, max_tokens=beside, ignore_eos=True)  # it ends with the weights that it began with
            answers.read()
            told = answers.updated(str(number), path=str(models[name]))
            assert isinstance(told, WeightStats)
            assert told.version == number + 1
            assert [answer(engine, each) for each in range(num_prompts)] == expected[name][:num_prompts]
            before = "b" if name == "a" else "a"
            assert answers.tokens.pop("beside")[:12] == expected[before][0]
        # Layer by layer back: in between it is neither model. A layer may be of one stage alone.
        parts = tensors(models["a"])
        layers = [tuple(each for each in parts if f"layers.{layer}." in each.name) for layer in range(2)]
        rest = tuple(each for each in parts if "layers." not in each.name)
        for layer, part in enumerate((*layers, rest)):
            assert isinstance(answers.updated(f"part{layer}", tensors=part), WeightStats)
        assert [answer(engine, each) for each in range(num_prompts)] == expected["a"][:num_prompts]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_checkpoint_leaves_all_ranks_with_the_old_weights(
    shape: str, models: dict[str, Path], tmp_path: Path
) -> None:
    with group_of(models["a"], tmp_path, "auto", shape) as engine:
        before = answer(engine, 0)
        for change in ("missing", "cut"):
            outcome = Answers(engine).updated("u", path=str(copied(models["b"], tmp_path / change, change)))
            assert isinstance(outcome, str)
            assert answer(engine, 0) == before
        told = stats(engine).weights
        assert told is not None
        assert (told.version, told.digest) == (0, None)
        assert isinstance(Answers(engine).updated("v", path=str(models["b"])), WeightStats)


@pytest.mark.parametrize("shape", ["tensor", "stages"])
@pytest.mark.parametrize(
    ("staged", "said"),
    [
        (RankStaged(error="there is no memory"), "rank 1: there is no memory"),
        (RankStaged(digest="ab"), "rank 1 has read other weights, whose digest is ab"),
    ],
)
def test_a_rank_that_cannot_take_them_leaves_all_with_the_old_weights(
    shape: str,
    staged: RankStaged,
    said: str,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = known(models, tmp_path, "auto")
    with group_of(models["a"], tmp_path, "auto", shape) as engine:
        group = engine._loop._runner.executable
        assert isinstance(group, RankGroup)
        waits = group._followers.wait_staged
        with monkeypatch.context() as patch:
            patch.setattr(group._followers, "wait_staged", lambda: (waits(), [(1, staged)])[1])
            assert said in str(Answers(engine).updated("u", path=str(models["b"])))
        assert answer(engine, 0) == expected["a"][0]
        assert isinstance(Answers(engine).updated("v", path=str(models["b"])), WeightStats)
        assert answer(engine, 0) == expected["b"][0]


def test_a_rank_that_dies_while_it_reads_ends_the_group_by_name(models: dict[str, Path], tmp_path: Path) -> None:
    with group_of(models["a"], tmp_path, "auto", "tensor") as engine:
        answers = Answers(engine)
        (rank,) = rank_processes()
        os.kill(rank, signal.SIGSTOP)
        answers.update("u", path=str(models["b"]))
        answers.read()  # the rank is told, and reads nothing
        os.kill(rank, signal.SIGKILL)
        answers.finish()
        assert "SIGKILL" in str(answers.updates["u"])
        answers.ask("late", 0)
        with pytest.raises(RankFailedError, match="SIGKILL"):
            answers.finish()


def test_experts_that_move_are_refused_by_name(tmp_path: Path) -> None:
    make_tiny("mixtral", tmp_path / "model")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(source=tmp_path / "model"))
    moves = ("parallelism.tensor=2", "parallelism.expert=true", "parallelism.enable_eplb=true")
    with pytest.raises(SpecError, match="experts that move"):
        prepare(
            spec, (*moves, "model.weight_update_paths=[.]", "model.skip_tokenizer_init=true", "model.max_model_len=128")
        )
