import pytest

from .checkpoints import HERE
from .plans import MODELS, golden_text


@pytest.mark.parametrize("name", MODELS)
def test_plan_is_the_golden_one(name: str) -> None:
    expected = (HERE / "plans" / f"{name}.txt").read_text()
    assert golden_text(name, MODELS[name]) == expected, "after a look: python -m tests.golden.update"


def test_every_golden_file_has_a_model() -> None:
    assert {path.stem for path in (HERE / "plans").glob("*.txt")} == set(MODELS)
