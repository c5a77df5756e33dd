"""No two public classes have one name, so that a name says which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRUCTS = {
    "kernels/cpu/abi.py",
    "kernels/cpu/operator_structs.py",
}  # structs of the C ABI have the names of the operators that they pass
OF_VLLM = {"offline/params.py"}  # classes with vLLM's names, which callers know


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        name = path.relative_to(ROOT / "appliance").as_posix()
        if name not in STRUCTS | OF_VLLM:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(name)
    return found


def test_no_two_public_classes_have_one_name() -> None:
    found = public_classes()
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
