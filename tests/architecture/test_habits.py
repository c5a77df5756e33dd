"""Rules of the code that a linter does not know."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from appliance.catalog.architectures import ARCHITECTURES
from appliance.checkpoint.dialects import DIALECTS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("appliance/**/*.py"))
DEVICE_NAMES = re.compile(r"\b(cuda|rocm|nvidia|amd|hip|gfx\d\w*|sm_?\d+|avx\w*|amx)\b", re.IGNORECASE)
MAY_NAME_DEVICES = (
    "hardware",
    "kernels",
    "catalog",
    "plan/types.py",
    "spec",
    "cli/profile.py",
    "cli/doctor.py",
    "cli/commands/machine.py",
)
REASON = re.compile(r"#\s*(?:type: ignore|noqa)(?:\[[^\]]*\]|: ?[A-Z0-9, ]+)?(?P<rest>.*)$")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(path: Path) -> Iterator[ast.AST]:
    yield from ast.walk(parsed(path))


def below(path: Path) -> str:
    return path.relative_to(ROOT / "appliance").as_posix()


def test_one_module_reads_the_environment() -> None:
    readers = {
        below(path)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
        and isinstance(node.value, ast.Name) and node.value.id == "os"
    }  # fmt: skip
    assert readers == {"base/environ.py"}


def test_no_error_is_swallowed() -> None:
    silent = [
        f"{below(path)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and all(isinstance(each, ast.Pass | ast.Continue) for each in node.body)
    ]
    assert silent == []


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    places = [
        f"{below(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert places == []


def test_a_silenced_checker_has_a_reason() -> None:
    bare = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = REASON.search(line)
            if found and not re.search(r"[a-z]{3}", found["rest"]):
                bare.append(f"{below(path)}:{number}: {line.strip()}")
    assert bare == []


def test_names_say_something() -> None:
    vague = {"utils.py", "util.py", "helpers.py", "helper.py", "misc.py", "common.py"}
    assert [below(path) for path in SOURCES if path.name in vague] == []
    classes = [
        f"{below(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and (node.name.endswith("Mixin") or node.name in {"Manager", "Helper"})
    ]
    assert classes == []


def test_device_names_stay_where_devices_are_known() -> None:
    strings: dict[str, list[str]] = {}
    for path in SOURCES:
        if below(path).startswith(MAY_NAME_DEVICES):
            continue
        documented = {id(node) for node in docstrings(path)}
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                for name in DEVICE_NAMES.findall(node.value):
                    strings.setdefault(f"{below(path)}:{node.lineno}", []).append(name)
    assert strings == {}


def test_the_planner_knows_no_family() -> None:
    """What a model is, it reads off the program: no name of a family, an architecture or a tensor stands in it."""
    families = {entry.family.rpartition(".")[2] for entry in ARCHITECTURES.values() if entry.family} | set(DIALECTS)
    assert len(families) > 10
    formats_of_tool_calls = ("catalog/parsers.py", "catalog/templates.py")
    others = ("catalog/architectures.py", *formats_of_tool_calls)
    names = re.compile(r"\w+(?:ForCausalLM|LMHeadModel)|(?:^|\.)\w+_proj|lm_head|embed_tokens|\bwte\b|\bwpe\b")
    found = []
    for path in SOURCES:
        if not below(path).startswith(("plan/", "catalog/")) or below(path) in others:
            continue
        documented = {id(node) for node in docstrings(path)}
        for node in nodes(path):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
            if is_text and (node.value in families or names.search(node.value)):
                found.append(f"{below(path)}:{node.lineno} {node.value!r}")
            if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node).endswith("model_type"):
                found.append(f"{below(path)}:{node.lineno} model_type")
    assert found == []


def docstrings(path: Path) -> Iterator[ast.Constant]:
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def test_our_kernel_sources_are_no_package() -> None:
    """transformers probes for a library of that name."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    probe = "import importlib.util; found = importlib.util.find_spec('kernels'); print(found and found.origin)"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd="/", check=True)
    assert str(ROOT) not in answer.stdout


@pytest.mark.parametrize("folder", ["wo" + "rk/", "op" + "t/py"])
def test_no_path_of_one_machine_is_committed(folder: str) -> None:
    absolute = f"(^|[^A-Za-z0-9_.}}]){'/' + folder}"
    found = subprocess.run(["git", "grep", "-lE", absolute], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode > 1:
        pytest.skip("not a git checkout")
    assert found.stdout.split() == []


def test_folders_of_tests_are_packages() -> None:
    """A folder that is none is imported by its last name alone, and `kernels` is also a folder of the project."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


ROOMS_TO_MEND = ("plan/", "server/", "service/")  # their docstrings are not all mended yet; the list only shrinks
NO_SENTENCE = re.compile(r"(As|None|Of|Whether)\b")
RIDDLES = re.compile(r"\b(of what|whoever)\b", re.IGNORECASE)


def test_docstrings_are_whole_sentences() -> None:
    """The first sentence has a subject and a verb, or begins with a verb; no word hides whom or what it means."""
    checked, found = 0, []
    for path in SOURCES:
        if not below(path).startswith(ROOMS_TO_MEND):
            for node in docstrings(path):
                text = str(node.value)
                checked += 1
                if NO_SENTENCE.match(text) or RIDDLES.search(text):
                    found.append(f"{below(path)}:{node.lineno} {text.splitlines()[0]}")
    assert checked > 1500
    assert found == []
