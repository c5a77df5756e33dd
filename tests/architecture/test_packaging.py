"""What the package says of itself: one version, its licence, and nothing that is not there."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = PYPROJECT["tool"]["scikit-build"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert "version" not in PYPROJECT["project"]
    [source] = PYPROJECT["tool"]["dynamic-metadata"]
    assert (source["field"], source["input"]) == ("version", "appliance/__init__.py")


def test_what_the_wheel_is_made_of_is_there() -> None:
    assert len(BUILD["wheel"]["packages"]) > 2
    for folder in BUILD["wheel"]["packages"].values():
        assert (ROOT / folder).is_dir(), folder
    for name in PYPROJECT["project"]["license-files"]:
        assert (ROOT / name).read_text().strip(), name
    assert (ROOT / "appliance" / "py.typed").exists()


def ignored(folder: Path, paths: list[str]) -> set[str]:
    """Returns the paths that git ignores; the sdist leaves them out too."""
    shutil.copy(ROOT / ".gitignore", folder)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    command = ["git", "-C", str(folder), "check-ignore", "--stdin"]
    done = subprocess.run(command, input="\n".join(paths), capture_output=True, text=True, check=False)
    assert done.returncode < 2, done.stderr
    return set(done.stdout.splitlines())


def test_the_sdist_has_what_the_wheel_is_built_of(tmp_path: Path) -> None:
    files = ["pyproject.toml", PYPROJECT["project"]["readme"], *PYPROJECT["project"]["license-files"]]
    for folder in (BUILD["cmake"]["source-dir"], *BUILD["wheel"]["packages"].values()):
        found = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "_native" not in path.parts]
        files += [str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts]
    assert len(files) > 400
    assert ignored(tmp_path, files) == set()


def test_libraries_of_this_machine_are_in_no_sdist(tmp_path: Path) -> None:
    """They would be taken for sources, and get into a wheel beside those that it builds."""
    libraries = ["appliance/_native/libappliance_cpu_avx2.so", "build/emulated/libappliance_cpu_emulated.so"]
    assert ignored(tmp_path, libraries) == set(libraries)


def test_a_users_compiler_may_warn() -> None:
    """Ours may not: `make test` asks for that."""
    assert BUILD["cmake"]["define"]["CMAKE_COMPILE_WARNING_AS_ERROR"]["default"] == "OFF"
    assert "-Werror" not in (ROOT / "kernels" / "CMakeLists.txt").read_text()
    assert re.search(r"\.dev: export APPLIANCE_WARNING_AS_ERROR := ON", (ROOT / "Makefile").read_text())
