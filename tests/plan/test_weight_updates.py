"""model.weight_update_paths: paths from the spec's folder, and what cannot have it."""

from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.plan.prepare import resolve_files
from tests.plan.machines import MODEL, load, plan


def test_paths_start_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    loaded = load(MODEL, "model.weight_update_paths=[./there, /else]")
    routes = plan(loaded, files=resolve_files(loaded, tmp_path, allow_fetch=False)).serving.routes
    assert routes.weight_update_paths == (str(tmp_path / "there"), "/else")
    assert plan(load(MODEL)).serving.routes.weight_update_paths == ()


@pytest.mark.parametrize(
    ("override", "reason"),
    [("parallelism.tensor=2", "2 ranks"), ("parallelism.pipeline=2", "2 ranks"), ("parallelism.data=2", "2 replicas")],
)
def test_what_could_have_two_versions_at_once_is_refused(override: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        plan(load(MODEL, "model.weight_update_paths=[./there]", override))
    assert "restart" in str(caught.value.diagnostics[0].hint)
