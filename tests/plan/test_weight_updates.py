"""model.weight_update_paths: paths from the spec's folder, with ranks and replicas, too."""

from pathlib import Path

import pytest

from appliance.plan.prepare import resolve_files
from tests.plan.machines import MODEL, load, plan


def test_paths_start_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    loaded = load(MODEL, "model.weight_update_paths=[./there, /else]")
    routes = plan(loaded, files=resolve_files(loaded, tmp_path, allow_fetch=False)).serving.routes
    assert routes.weight_update_paths == (str(tmp_path / "there"), "/else")
    assert plan(load(MODEL)).serving.routes.weight_update_paths == ()


@pytest.mark.parametrize("override", ["parallelism.tensor=2", "parallelism.pipeline=2", "parallelism.data=2"])
def test_ranks_and_replicas_take_new_weights(override: str, tmp_path: Path) -> None:
    loaded = load(MODEL, "model.weight_update_paths=[/there]", override)
    routes = plan(loaded, files=resolve_files(loaded, tmp_path, allow_fetch=False)).serving.routes
    assert routes.weight_update_paths == ("/there",)
