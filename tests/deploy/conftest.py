"""A deployment's state, whose server ends with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.deploy.execute import stop
from appliance.deploy.state import DeploymentState


@pytest.fixture
def state(tmp_path: Path) -> Iterator[DeploymentState]:
    state = DeploymentState(tmp_path / "state", "scripted")
    state.create()
    yield state
    current = state.current()
    if current is not None:
        stop(state, current, None)
