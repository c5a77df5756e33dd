"""The workflows of this repository: their form is right, and what they run is here."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from appliance import __version__

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()


def runs(workflow: Path) -> list[list[str]]:
    """The commands of all jobs, as words."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [shlex.split(step["run"]) for job in jobs for step in job["steps"] if "run" in step]


def test_github_would_take_them() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release", "sanitize"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_they_run_what_is_here() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
    variables = set(re.findall(r"^([A-Z][A-Z_]*) \?=|\$\((APPLIANCE_LEVELS)\)", MAKEFILE, re.M))
    for words in (words for workflow in WORKFLOWS for words in runs(workflow)):
        if words[0] == "make":
            assert words[1] in targets
            assert {word.partition("=")[0] for word in words[2:] if "=" in word} <= {a or b for a, b in variables}
        elif words[0] not in ("docker", "gh"):
            assert os.access(ROOT / words[0], os.X_OK), f"{words[0]} is no program of this repository"


def test_a_push_is_checked_by_the_command_that_contributors_run() -> None:
    (test,) = (words for words in runs(ROOT / ".github/workflows/ci.yml") if words[0] != "docker")
    assert (ROOT / test[0]).read_text().splitlines()[-1] == "exec make test"


def test_every_sanitizer_has_its_turn_each_week() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/sanitize.yml").read_text())
    kinds = workflow["jobs"]["native"]["strategy"]["matrix"]["sanitizer"]
    assert re.findall(r"^SANITIZERS \?= (.+)$", MAKEFILE, re.M) == [" ".join(kinds)]
    assert workflow[True]["schedule"], "YAML 1.1 reads the key `on` as true"


def test_a_tag_that_is_not_the_version_is_no_release() -> None:
    def taken(tag: str) -> bool:
        command = [str(ROOT / ".ci" / "is-version"), tag]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert taken(f"v{__version__}")
    assert not any(taken(tag) for tag in ("v", __version__, f"v{__version__}rc1", f"release-v{__version__}"))


def test_what_is_published_was_tried_first() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert (jobs["publish"]["needs"], jobs["check"]["needs"]) == ("check", "build")
    assert jobs["publish"]["environment"] == "release"
    assert any(words[0] == ".ci/wheel-check" for words in runs(ROOT / ".github/workflows/release.yml"))
