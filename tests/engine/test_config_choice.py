"""`model.hf_overrides` and `model.hf_config_path` through planning and an engine: as if the checkpoint said so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import TORCH, answers, engine_of, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

OTHER = {"rope_theta": 50.0, "rms_norm_eps": 0.1}
OVERRIDDEN = "model.hf_overrides={rope_theta: 50.0, rms_norm_eps: 0.1}"


def other_config(spec: Path, folder: Path) -> Path:
    """Writes the model's config with other values, in the form of older transformers."""
    config = json.loads((spec.parent / "model" / "config.json").read_text())
    config.pop("rope_parameters", None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **OTHER}))
    return folder


@pytest.mark.parametrize("more", [(), ("parallelism.tensor=2",), (TORCH,)], ids=["one", "ranks", "torch"])
def test_answers_are_those_of_a_checkpoint_that_says_so(
    more: tuple[str, ...], spec_of: Callable[[str], Path], tmp_path: Path
) -> None:
    spec = spec_of("llama")
    folder = other_config(spec, tmp_path / "config")
    written = shutil.copytree(spec.parent / "model", tmp_path / "written")
    shutil.copy(folder / "config.json", written)
    choices = ((), (f"model.source={written}",), (OVERRIDDEN,), (f"model.hf_config_path={folder}",))
    found = []
    for choice in choices:
        with engine_of(spec, *choice, *more) as engine:
            found.append(answers(engine, 1))
    own, *others = found
    assert others[0] != own
    assert all(each == others[0] for each in others)


def test_the_engine_is_another_one_and_the_plan_says_why(spec_of: Callable[[str], Path]) -> None:
    spec = str(spec_of("llama"))
    own, found = prepare(spec).plan, prepare(spec, (OVERRIDDEN,)).plan
    assert found.engine_sha256 != own.engine_sha256
    said = {each.path: each for each in found.decisions if each.path.startswith("model.config.")}
    assert {path.rpartition(".")[2]: each.value for path, each in said.items()} == OTHER
    assert all(each.source == "override" for each in said.values())
    [warning] = prepare(spec, ("model.hf_overrides={num_hiden_layers: 1}",)).plan.warnings
    assert "hf_overrides.num_hiden_layers: the checkpoint's config has no such key" in warning


@pytest.mark.parametrize(
    ("overrides", "rule", "said"),
    [
        ("{intermediate_size: 80}", "plan/weights", "the config calls for"),
        ("{num_hidden_layers: 1}", "plan/weights", "no part of the model reads"),
        ("{num_hidden_layers: many}", "plan/config", "a positive whole number is expected"),
        ("{architectures: [NoSuchModel]}", "plan/architecture", "'NoSuchModel' is not in this version"),
        ("{rope_scaling: {rope_type: linear, factor: 0}}", "plan/family", "factor"),
    ],
)
def test_what_the_weights_or_we_contradict_is_refused_at_its_place(
    overrides: str, rule: str, said: str, spec_of: Callable[[str], Path]
) -> None:
    spec = spec_of("llama").parent / "broken.yaml"
    spec.write_text(spec_of("llama").read_text().replace("model: {", f"model: {{hf_overrides: {overrides}, ", 1))
    with pytest.raises(SpecError) as caught:
        prepare(str(spec))
    found = caught.value.diagnostics[0]
    assert (found.rule, found.path, found.line, found.column) == (rule, "model.hf_overrides", 5, 23)
    assert said in found.message
    assert found.hint
