"""What is planned of adapters: which are served is in a digest of its own, and how many may be in memory."""

from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.prepare import resolve_files
from appliance.plan.types import EnginePlan
from tests.deploy.field_values import adapters_of
from tests.plan.machines import MODEL, load, plan

TWO = "lora: {max_loras: 3, adapters: [{name: one, source: ./one}, {name: two, source: ./two}]}"


def planned(*overrides: str) -> EnginePlan:
    loaded = load(f"{MODEL}{TWO}\n", *overrides)
    return plan(loaded, files=ResolvedFiles(adapters=adapters_of(loaded)))


def memory_of(found: EnginePlan, name: str) -> int:
    return next(item.size_bytes for item in found.memory[0].items if item.name == name)


def kept(found: EnginePlan) -> int:
    assert found.adapters is not None
    return found.adapters.max_cpu_loras


@pytest.mark.parametrize(
    "override",
    ["lora.adapters[0].source=./other", "lora.adapters[1].name=three", "lora.adapters[0].scale=2.0",
     "lora.adapters[1].pinned=true", "lora.max_cpu_loras=7"],
)  # fmt: skip
def test_the_set_has_a_digest_of_its_own(override: str) -> None:
    one, other = planned(), planned(override)
    assert one.adapters_sha256 != other.adapters_sha256
    assert (one.engine_sha256, one.serving_sha256) == (other.engine_sha256, other.serving_sha256)


@pytest.mark.parametrize("override", ["lora.max_loras=4", "lora.max_rank=32", "lora.dtype=float32"])
def test_what_memory_is_sized_by_needs_another_engine(override: str) -> None:
    one, other = planned(), planned(override)
    assert one.engine_sha256 != other.engine_sha256
    assert one.adapters_sha256 == other.adapters_sha256


def test_there_is_a_slot_more_than_adapters_of_a_step() -> None:
    one, more = (memory_of(planned(f"lora.max_loras={count}"), "adapters") for count in (3, 7))
    assert one * 2 == more


def test_as_many_are_kept_as_are_listed_or_a_step_has_where_requests_load_others() -> None:
    assert kept(planned()) == 2
    for override in ("lora.allow_runtime_updating=true", "lora.resolver_dir=./here"):
        assert kept(planned(override)) == 3
    found = planned("lora.max_cpu_loras=5")
    assert kept(found) == 5
    assert memory_of(found, "kept_adapters") * 4 == memory_of(found, "adapters") * 5
    with pytest.raises(SpecError, match="2 adapters are listed, and 1 may be in memory"):
        planned("lora.max_loras=1", "lora.max_cpu_loras=1")


def test_paths_start_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    loaded = load(f"{MODEL}lora: {{resolver_dir: ./here, runtime_paths: [./there, /else]}}\n")
    files = resolve_files(loaded, tmp_path, allow_fetch=False)
    rules = plan(loaded, files=files).serving.adapters
    assert rules.resolver_dir == str(tmp_path / "here")
    assert rules.paths == (str(tmp_path / "there"), "/else")
    assert rules.resolves
