"""A family of another package, as the page says: it is planned and answers, where plug-ins are trusted."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.base.plugins import PluginError
from appliance.deploy.audit.rules import audit
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.models.outside import GROUP, check_installed, find_family
from appliance.plan.prepare import prepare
from appliance.plan.render import render_text
from tests.extending.pages import block

PAGE = "add-a-model.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, and the toy's checkpoint in `models`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "argv", ["make_toy.py", str(tmp_path / "models" / "toy")])
    exec(compile(block(PAGE, "models/make_toy.py"), "models/make_toy.py", "exec"), {"__name__": "__main__"})
    (tmp_path / "models" / "outside.yaml").write_text(block(PAGE, "models/outside.yaml"))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "our_models"]:
        del sys.modules[name]


def install(site: Path, code: str, *, name: str = "our-models", value: str | None = None) -> None:
    """Puts a package there as an installer would, with the entry points of the page's pyproject.toml."""
    project = tomllib.loads(block(PAGE, "pyproject.toml"))["project"]
    points = project["entry-points"][GROUP]
    folder = site / "our_models"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text("")
    (folder / "toy.py").write_text(code)
    info = site / f"{name.replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}\n")
    lines = [f"{each} = {value or points[each]}" for each in points]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(lines) + "\n")
    importlib.invalidate_caches()


def toy_code() -> str:
    return block(PAGE, "appliance/models/toy.py")


def spec_of(site: Path) -> Path:
    return site.parent / "models" / "outside.yaml"


def test_it_is_planned_and_answers(site: Path) -> None:
    install(site, toy_code())
    prepared = prepare(spec_of(site), ("scheduler.max_num_seqs=2", "hardware.memory.kv_cache=1MiB"))
    family = prepared.plan.model.family
    assert family is not None
    assert (family.family, family.package, family.version) == ("our_models.toy", "our-models", "1.2")
    assert "our_models.toy, of the package our-models 1.2" in render_text(prepared.plan)
    told = "our_models.toy of the package our-models 1.2 builds the model in the planner and the engine"
    assert told in [finding.message for finding in audit(prepared)]
    with InprocEngine.from_plan(prepared.plan) as engine:
        sampling = SamplingParams(max_tokens=4, temperature=0.0)
        engine.send(GenerateRequest(request_id="r", prompt_token_ids=[79, 110, 99], sampling=sampling))
        tokens: list[int] = []
        while engine.has_work:
            for event in engine.receive():
                assert isinstance(event, OutputBatch)
                tokens += [token for output in event.outputs for token in output.token_ids]
    assert len(tokens) == 4


def test_nothing_is_read_or_imported_without_trust(site: Path) -> None:
    install(site, "raise SystemExit('it was imported')")
    with pytest.raises(ApplianceError, match="'ToyForCausalLM' is not in this version"):
        prepare(spec_of(site), ("decoding.trust_plugins=false",))
    assert "our_models.toy" not in sys.modules


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no.such.module", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("def build(facts, max_model_len):\n    raise LookupError('no idea')", "LookupError: no idea"),
        ("def build(facts, max_model_len):\n    raise SystemExit(3)", "SystemExit"),
        ("def build(facts, max_model_len):\n    return 'a spec'", "our-models 1.2 failed"),
    ],
)
def test_a_family_that_fails_is_refused_by_name(site: Path, code: str, words: str) -> None:
    install(site, code)
    with pytest.raises(ApplianceError, match=r"our_models\.toy of the package our-models 1\.2") as error:
        prepare(spec_of(site))
    assert words in str(error.value)


@pytest.mark.parametrize(
    "lie", [("hidden_size=config.hidden_size", "hidden_size=32"), ('"mlp.up_proj"', '"mlp.other"')]
)
def test_a_family_that_says_other_shapes_is_refused(site: Path, lie: tuple[str, str]) -> None:
    assert lie[0] in toy_code()
    install(site, toy_code().replace(*lie))
    with pytest.raises(ApplianceError, match=r"has the shape|lacks 2 tensors"):
        prepare(spec_of(site))


def test_one_package_has_a_family(site: Path) -> None:
    install(site, toy_code())
    install(site, toy_code(), name="their-models")
    with pytest.raises(PluginError, match="our-models and their-models"):
        prepare(spec_of(site))


def test_an_entry_point_is_a_module(site: Path) -> None:
    install(site, toy_code(), value="our_models.toy:build")
    with pytest.raises(PluginError, match=r"our_models\.toy:build"):
        prepare(spec_of(site))


def test_ours_is_never_replaced(site: Path) -> None:
    install(site, toy_code())
    info = next(site.glob("*.dist-info"))
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nLlamaForCausalLM = our_models.toy\n")
    assert find_family("LlamaForCausalLM") is None


def test_another_version_is_not_run(site: Path) -> None:
    install(site, toy_code())
    family = find_family("ToyForCausalLM")
    assert family is not None
    assert check_installed(family) is family
    other = msgspec.structs.replace(family, version="1.1")
    with pytest.raises(PluginError, match=r"our-models 1\.1, and here it is 1\.2"):
        check_installed(other)
    missing = msgspec.structs.replace(family, package="no-such-package-here")
    with pytest.raises(PluginError, match="here it is missing"):
        check_installed(missing)
