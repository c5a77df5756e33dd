"""Rules of the sources: everything but device code is typed, which mypy is told not to ask for here."""

import ast
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[3] / "appliance/kernels/gpu/triton").glob("*.py"))


def is_device_code(function: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(each) for each in function.decorator_list)


def test_launchers_are_typed() -> None:
    checked, untyped = 0, []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not is_device_code(node):
                checked += 1
                given = [each for each in (*node.args.args, *node.args.kwonlyargs) if each.arg not in ("self", "cls")]
                if node.returns is None or any(each.annotation is None for each in given):
                    untyped.append(f"{path.name}:{node.lineno} {node.name}")
    assert checked > 5
    assert untyped == []
