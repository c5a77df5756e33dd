"""The stages of the Dockerfile: what runs has a health check, no root and no leftovers, and holds what it has to."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ("cuda", "rocm", "cpu")
Instruction = tuple[str, str]


def stages() -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name, those of the stage below it first."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[Instruction]] = {}
    name = ""
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]  # or the test fails
            found[name] = list(found.get(base, []))
        found[name].append((word, rest))
    return found


STAGES = stages()


def of(stage: str, word: str) -> list[str]:
    return [rest for each, rest in STAGES[stage] if each == word]


def test_each_target_is_there_and_the_processor_is_the_last() -> None:
    assert set(TARGETS) < set(STAGES)
    assert list(STAGES)[-1] == "cpu", "what is built without --target"


@pytest.mark.parametrize("target", TARGETS)
def test_what_runs_is_no_root_and_says_whether_it_is_well(target: str) -> None:
    assert of(target, "USER") == ["appliance"]
    (check,) = of(target, "HEALTHCHECK")
    assert "/livez" in check
    assert json.loads(of(target, "ENTRYPOINT")[0]) == ["appliance"]
    assert json.loads(of(target, "CMD")[0])[0] == "apply"
    assert json.loads(of(target, "VOLUME")[0]) == ["/cache", "/state"]
    order = [word for word, _ in STAGES[target]]
    assert order.index("RUN") < order.index("USER"), "installing needs root"


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_left_of_installing(stage: str) -> None:
    runs = of(stage, "RUN")
    assert not of(stage, "ADD")
    for command in runs:
        for part in command.split("&&"):
            assert "pip install" not in part or "--no-cache-dir" in part, part
            assert "apt-get install" not in part or "--no-install-recommends" in part, part
        assert "apt-get" not in command or "rm -rf /var/lib/apt/lists" in command
    (base, *_) = of(stage, "FROM")
    assert re.match(r"python:\d+\.\d+-slim-\w+ ", base), "a version, and no more than Python needs"


def test_a_target_installs_its_own_extra_and_a_processor_needs_none() -> None:
    installed = {target: " ".join(of(target, "RUN")) for target in TARGETS}
    for target in ("cuda", "rocm"):
        assert f"[{target}]" in installed[target]
        assert "gcc" in installed[target], "Triton builds its launcher"
    assert "TORCH_INDEX" in installed["rocm"], "the torch of the default index is one for CUDA"
    assert "torch" not in installed["cpu"]
    assert "gcc" not in installed["cpu"]
    sources = [rest for target in TARGETS for rest in of(target, "COPY")]
    assert set(sources) == {"--from=build /wheels /wheels"}, "no sources, and no compiler of C++"
