"""Every dependency has a user and a reason, and every third-party import has a dependency."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "pyyaml": "yaml",
    "pyzmq": "zmq",
    "huggingface-hub": "huggingface_hub",
    "prometheus-client": "prometheus_client",
    "pydantic-settings": "pydantic_settings",
    "python-multipart": "python_multipart",
}
BY_NAME = {"uvicorn", "uvloop", "httptools"}  # chosen in uvicorn's options rather than imported
OPTIONAL = {"torch", "transformers", "safetensors", "opentelemetry", "triton", "ray"}  # extras


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.split(r"[<>=;\[ ]", each)[0] for each in project["dependencies"]}


def imported() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "appliance").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"appliance"}


def test_every_dependency_is_used() -> None:
    modules = {MODULES.get(name, name) for name in declared() - BY_NAME}
    assert modules - imported() == set()


def test_every_import_is_a_dependency() -> None:
    modules = {MODULES.get(name, name) for name in declared()}
    # Of pydantic, fastapi and jsonschema, whose faces they are.
    extra = {"annotated_types", "pydantic_core", "starlette", "jsonschema_specifications"}
    assert imported() - modules - extra - OPTIONAL == set()


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "docs/decisions/dependencies.md").read_text()
    assert {name for name in declared() if name not in text} == set()
