"""The page that shows how to add a kernel set: its row is planned, and its set gives the tokens of the reference."""

import importlib
from pathlib import Path

import pytest

from appliance.catalog import kernel_sets
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import built_kernel_sets, load_kernel_set
from appliance.kernels.interface import KernelSet
from tests.extending.pages import block
from tests.models.tiny import make_tiny
from tests.parity.harness import Driver, bind, execution_of
from tests.plan.machines import MODEL, load, machine, plan, small_model

PAGE = "add-a-kernel-set.md"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the toy's set, with its module and its row in place."""
    row = eval(block(PAGE, "a row of _TABLE"), {"KernelSetFacts": KernelSetFacts})
    package, _, module = row.module.rpartition(".")
    (tmp_path / f"{module}.py").write_text(block(PAGE, f"{row.module.replace('.', '/')}.py"))
    folders = importlib.import_module(package).__path__
    monkeypatch.setattr(importlib.import_module(package), "__path__", [*folders, str(tmp_path)])
    monkeypatch.setitem(kernel_sets.KERNEL_SETS, row.name, row)
    return str(row.name)


def test_a_spec_can_name_the_set(toy: str) -> None:
    assert plan(load(MODEL + block(PAGE, "a section of a spec")), small_model(), machine()).kernels.kernel_set == toy


def test_the_set_gives_the_tokens_of_the_reference(toy: str, tmp_path: Path) -> None:
    assert toy in built_kernel_sets()
    make_tiny("llama", tmp_path / "model")
    facts = read_model_facts(tmp_path / "model")

    def tokens(kernel_set: KernelSet) -> list[int]:
        return Driver(bind(facts, kernel_set), execution_of()).greedy([5, 9, 20], 6)

    assert load_kernel_set(toy).name == toy
    assert tokens(load_kernel_set(toy)) == tokens(load_kernel_set("reference"))
