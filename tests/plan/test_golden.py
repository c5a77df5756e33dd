import pytest

from .checkpoints import DATA
from .golden import MODELS, golden_text


@pytest.mark.parametrize("name", MODELS)
def test_plan_is_the_golden_one(name: str) -> None:
    expected = (DATA / "plans" / f"{name}.txt").read_text()
    assert golden_text(name, MODELS[name]) == expected, "after a look: python -m tests.plan.update_golden"


def test_every_golden_file_has_a_model() -> None:
    assert {path.stem for path in (DATA / "plans").glob("*.txt")} == set(MODELS)
