"""The page that shows how to add a model family: its code runs, and the toy answers alike on every kernel set."""

import importlib
import sys
from pathlib import Path

import pytest
import yaml

from appliance.catalog import architectures
from appliance.catalog.architectures import Architecture
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import load_kernel_set
from appliance.plan.prepare import prepare
from tests.extending.pages import EXTENDING, block
from tests.parity.conftest import kernel_set_names
from tests.parity.harness import Driver, bind, execution_of

PAGE = "add-a-model.md"
PROMPT = [79, 110, 99, 101, 32, 117]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the toy's checkpoint, with the family registered as the page says."""
    (tmp_path / "toy.py").write_text(block(PAGE, "appliance/models/toy.py"))
    monkeypatch.syspath_prepend(tmp_path)
    assert '_built("ToyForCausalLM", "toy")' in (EXTENDING / PAGE).read_text()
    row = Architecture("ToyForCausalLM", "toy")
    monkeypatch.setitem(architectures.ARCHITECTURES, row.name, row)
    monkeypatch.setattr(sys, "argv", ["make_toy.py", str(tmp_path / "models" / "toy")])
    exec(compile(block(PAGE, "models/make_toy.py"), "models/make_toy.py", "exec"), {"__name__": "__main__"})
    importlib.invalidate_caches()
    return tmp_path / "models" / "toy"


def test_the_spec_of_the_page_is_planned(toy: Path) -> None:
    spec = toy.parent / "toy.yaml"
    spec.write_text(block(PAGE, "models/toy.yaml"))
    assert yaml.safe_load(block(PAGE, "models/toy.yaml"))["model"]["source"] == "./toy"
    planned = prepare(spec).plan
    assert planned.model.architecture == "ToyForCausalLM"
    assert {each.operator.split("[")[0] for each in planned.kernels.choices} >= {"LayerNorm", "PagedAttention"}


def test_it_answers_alike_on_every_kernel_set(toy: Path) -> None:
    facts = read_model_facts(toy)
    answers = {
        name: Driver(bind(facts, load_kernel_set(name)), execution_of()).greedy(PROMPT, 8)
        for name in kernel_set_names()
    }
    assert len(answers) > 1
    assert all(answer == answers["reference"] for answer in answers.values())
