"""Which failed starts of an engine are tried again. The engine is a process whose `boot` fails."""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from appliance.base.sockets import socket_folder
from appliance.plan.serving_types import RestartPlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.health import EngineState, Health
from appliance.service.supervisor import _END_WAIT_S, EnginePaths, Supervisor
from tests.engine.plans import scripted_plan

PROGRAM = """
import sys
from appliance.engine import process
{imports}
def boot(*_, **__):
    {fails}
process.boot = boot
sys.exit(process.main())
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Python code whose last statement raises."""

    imports: str
    fails: str


OTHER_ABI = Start(
    "from appliance.kernels.cpu import abi, library\nabi.ABI_VERSION += 1", "library.load_level('generic')"
)
OTHER_CHECKPOINT = Start(
    "from appliance.engine.backend import PlanMismatchError", "raise PlanMismatchError('not what was planned')"
)
OTHER_KEY = Start(
    "from appliance.checkpoint.errors import SealedError", "raise SealedError('it', 'has another key', 'find it')"
)
NO_MEMORY = Start("", "raise MemoryError('for now')")


async def failed(folder: Path, start: Start) -> Health:
    """The health of an engine that may be started twice, and is then given up."""
    plan = scripted_plan(folder)
    rule = RestartPlan(policy="on-failure", max_restarts=1, window_s=600.0, backoff_s=0.01, heartbeat_timeout_s=30.0)
    plan = msgspec.structs.replace(plan, restart=rule)
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-c", PROGRAM.format(imports=start.imports, fails=start.fails)]
    client = EngineClient(AdmissionLimits(max_num_seqs=8, max_waiting=None))
    with socket_folder() as sockets:
        supervisor = Supervisor(plan, EnginePaths(path, sockets), client, command=command)
        supervisor.start()
        return await asyncio.wait_for(supervisor.settled(), 60)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (OTHER_ABI, ["ABI version", "pip install -e ."]),
        (OTHER_CHECKPOINT, ["not what was planned"]),
        (OTHER_KEY, ["it: has another key; find it"]),
    ],
    ids=["ABI", "checkpoint", "key"],
)
async def test_what_no_new_start_heals_fails_at_once(tmp_path: Path, start: Start, says: list[str]) -> None:
    health = await failed(tmp_path, start)
    assert health.state is EngineState.FAILED
    assert health.num_restarts == 0
    assert health.reason.endswith("; it is not started again, as it would fail in the same way")
    assert [each for each in says if each not in health.reason] == []


async def test_what_may_heal_is_tried_again(tmp_path: Path) -> None:
    health = await failed(tmp_path, NO_MEMORY)
    assert health.state is EngineState.FAILED
    assert health.num_restarts == 1
    assert "it failed 2 times" in health.reason


async def test_one_that_still_loads_is_ended_at_once_also_in_a_drain(tmp_path: Path) -> None:
    """It would not read that it is to end, and a server that is told to end during its start drains first."""
    path = tmp_path / "plan.json"
    plan = scripted_plan(tmp_path)
    path.write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    client = EngineClient(AdmissionLimits(max_num_seqs=8, max_waiting=None))
    with socket_folder() as sockets:
        supervisor = Supervisor(plan, EnginePaths(path, sockets), client, command=command)
        supervisor.start()
        await asyncio.sleep(0.1)
        assert supervisor.endpoint
        supervisor.drain()
        began = time.monotonic()
        await supervisor.stop()
        assert time.monotonic() - began < _END_WAIT_S
        assert supervisor.health.state is EngineState.STOPPED
