"""How a server begins with a plan, and what becomes of an engine that cannot begin in the server's process."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from appliance.engine.scripted import Script
from appliance.service.engine_spawn import StartOfPlan, start_of
from appliance.service.engine_thread import EngineThread
from tests.engine.plans import scripted_plan


def test_a_plan_says_how_its_server_begins(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = scripted_plan(tmp_path, Script(), has_engine_inside=True, api_servers=3)
    path.write_bytes(msgspec.json.encode(plan))
    assert start_of(path) == StartOfPlan(is_inside=True, is_alone=True, api_servers=3)
    third = msgspec.structs.replace(plan.parallel, data=4, replicas=1, first_replica=2)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, parallel=third)))
    assert start_of(path).first_replica == 2
    together = msgspec.structs.replace(plan.parallel, expert=True, data=2)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, parallel=together)))
    assert not start_of(path).is_alone


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"serving": [], "parallel": {"expert": false}}'])
def test_what_is_no_plan_begins_as_most_do(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert start_of(path) == StartOfPlan()
    path.write_text(text)
    assert start_of(path) == StartOfPlan()


async def test_an_engine_that_cannot_begin_in_a_thread_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever debugs an engine may have broken it: its server must not wait for it without end."""
    path = tmp_path / "plan.json"
    path.write_text("no plan")
    async with asyncio.timeout(30):
        assert await EngineThread(path, tmp_path / "socket", 0).wait() == 1
    assert "the engine could not start" in caplog.text
