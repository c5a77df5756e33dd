"""Which module may import which, and that serving on a CPU needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.files import LLAMA, write_gguf

ROOT = Path(__file__).resolve().parents[2]

WALK = """
import importlib, json, pkgutil, sys

heavy = ("torch", "transformers", "safetensors", "pandas", "ray")
found = {}
for module in pkgutil.walk_packages([sys.argv[1]], "appliance."):
    on_torch = ("appliance.kernels.reference", "appliance.kernels.modelling", "appliance.kernels.gpu")
    on_ray = ("appliance.ray.router",)
    if module.name.startswith(on_torch + on_ray) or module.name.endswith("__main__"):
        continue
    importlib.import_module(module.name)
    for name in heavy:
        if name in sys.modules and name not in found:
            found[name] = module.name
print(json.dumps(found))
"""

QUICK = """
import json, sys
from appliance.cli.app import main
main(sys.argv[1:])
slow = ("torch", "transformers", "numpy", "fastapi", "uvicorn", "zmq", "httpx", "huggingface_hub", "rich",
        "asyncio", "ssl", "http", "multiprocessing", "concurrent", "jinja2", "tokenizers", "gguf", "safetensors",
        "pydantic_settings", "appliance.kernels", "appliance.loading", "appliance.engine", "appliance.text",
        "appliance.service", "appliance.server", "appliance.deploy")
print(json.dumps([name for name in slow if name in sys.modules]))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_no_module_of_the_serving_path_imports_torch() -> None:
    assert json.loads(run(WALK, str(ROOT / "appliance"))) == {}


SPEC = "api_version: appliance/v1\nkind: Deployment\nname: test\nmodel: {source: ./m.gguf}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "m.gguf", metadata=LLAMA | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]})
    (tmp_path / "test.yaml").write_text(SPEC)
    return tmp_path / "test.yaml"


def test_planning_imports_only_what_it_needs(spec: Path) -> None:
    assert json.loads(run(QUICK, "plan", str(spec))) == []


def test_validating_builds_no_validator_for_sections_that_are_not_there(spec: Path) -> None:
    code = """
import json, sys
from appliance.spec import load_spec
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.sections.work import BenchSection
load_spec(sys.argv[1]).sha256
print(json.dumps([each.__pydantic_complete__ for each in (DeploymentSpec, BenchSection)]))
"""
    assert json.loads(run(code, str(spec))) == [False, False]


@pytest.mark.parametrize(
    "verb", [["--help"], ["validate", "docs/examples"], ["explain", "cache"], ["schema"]], ids=lambda v: v[0]
)
def test_a_quick_verb_imports_only_what_it_needs(verb: list[str]) -> None:
    assert json.loads(run(QUICK, *verb)) == []


def test_the_layers_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(tool)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
