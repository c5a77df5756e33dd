"""An address that cannot be had is told before a server starts, with who has it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplyError
from appliance.deploy.listeners import listening_pids, require_free
from appliance.deploy.process import identify
from appliance.deploy.starting import describe
from appliance.deploy.state import DeploymentState
from appliance.plan.serving_types import ListenPlan
from tests.deploy.applying import Heard, apply, wanted
from tests.e2e.conftest import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def address_at(folder: Path, port: int, host: str = "127.0.0.1") -> ListenPlan:
    return msgspec.structs.replace(wanted(folder).plan.serving.listen, port=port, host=host)


def test_a_free_address_stays_free(tmp_path: Path) -> None:
    port = free_port()
    for _ in range(2):
        require_free(address_at(tmp_path, port), tmp_path)
    assert listening_pids(port) == []


def test_who_listens_is_named(tmp_path: Path, taken: int) -> None:
    with pytest.raises(
        ApplyError, match=rf"127\.0\.0\.1:{taken}: the port is taken by .+ \(pid {os.getpid()}\)"
    ) as caught:
        require_free(address_at(tmp_path, taken), tmp_path)
    assert "--set endpoints.http.port=" in str(caught.value.hint)


def test_a_deployment_that_listens_is_named(tmp_path: Path, taken: int) -> None:
    what, state = wanted(tmp_path), DeploymentState(tmp_path / "state", "other")
    state.create()
    process = identify(os.getpid())
    assert process is not None
    state.write_current(describe(what.plan, state.generation(1), process, what.spec_file))
    with pytest.raises(ApplyError, match="the port is taken by the deployment other") as caught:
        require_free(address_at(tmp_path, taken), tmp_path / "state")
    assert "appliance down other" in str(caught.value.hint)


def test_a_process_of_somebody_else_is_not(tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.deploy.listeners._links", lambda pid: iter(()))
    with pytest.raises(ApplyError, match="by a process that this user may not see"):
        require_free(address_at(tmp_path, taken), tmp_path)


def test_an_address_of_another_machine_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match=r"Cannot assign requested address$") as caught:
        require_free(address_at(tmp_path, free_port(), host="192.0.2.1"), tmp_path)
    assert caught.value.hint == "choose another endpoints.http.host"


def test_nothing_is_started_for_a_port_that_is_taken(state: DeploymentState, tmp_path: Path, taken: int) -> None:
    heard = Heard()
    with pytest.raises(ApplyError, match="the port is taken"):
        apply(state, wanted(tmp_path / "a", port=taken), heard)
    assert "import" not in heard.phases
    assert not state.generation(1).log_path.exists()
    result = state.generation(1).result()
    assert result is not None
    assert (result.outcome, "the port is taken" in result.reason) == ("failed", True)
    assert state.current() is None
