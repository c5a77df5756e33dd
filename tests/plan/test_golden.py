import pytest

from .checkpoints import DATA
from .golden import MODELS, golden_text
from .golden_gpus import gpus_text

GPUS = "gpus"


@pytest.mark.parametrize("name", MODELS)
def test_plan_is_the_golden_one(name: str) -> None:
    expected = (DATA / "plans" / f"{name}.txt").read_text()
    assert golden_text(name, MODELS[name]) == expected, "after a look: python -m tests.plan.update_golden"


def test_every_golden_file_has_a_model() -> None:
    assert {path.stem for path in (DATA / "plans").glob("*.txt")} == {*MODELS, GPUS}


def test_plans_of_large_models_on_gpus_are_the_golden_ones() -> None:
    """They fit or are refused; what has no ranks yet is refused at its place, with changes that were tried."""
    expected = (DATA / "plans" / f"{GPUS}.txt").read_text()
    assert gpus_text() == expected, "after a look: python -m tests.plan.update_golden"
    assert expected.count("\n### ") == 5
