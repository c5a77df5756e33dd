"""Files and functions stay small enough to read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(path for folder in ("appliance", "tests", "docs") for path in ROOT.glob(f"{folder}/**/*.py"))
NATIVE = sorted(path for path in ROOT.glob("kernels/**/*") if path.suffix in {".cpp", ".h", ".cu", ".cuh", ".py"})
MAX_LINES = 400
MAX_NATIVE_LINES = 600
MAX_FUNCTION_LINES = 60


@pytest.mark.parametrize(
    ("paths", "limit"), [(PYTHON, MAX_LINES), (NATIVE, MAX_NATIVE_LINES)], ids=["python", "native"]
)
def test_files_are_short(paths: list[Path], limit: int) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > limit} == {}


def test_functions_are_short() -> None:
    long = {}
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = length
    assert long == {}
