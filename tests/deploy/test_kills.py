"""kill -9 of an apply, a server or an engine at any moment: the next apply ends in the declared state."""

import os
import random
import signal
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import pytest

from appliance.deploy import control
from appliance.deploy.state import DeploymentState
from appliance.engine.scripted import Script
from tests.deploy.applying import apply, wanted
from tests.deploy.killing import (
    VICTIMS,
    VICTIMS_OF_MANY,
    Family,
    KilledAtPhase,
    check_declared,
    check_gone,
    choose,
    in_a_process,
    kill_at,
)
from tests.e2e.conftest import free_port
from tests.server.harness import says

ROUNDS = int(os.environ.get("APPLIANCE_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("APPLIANCE_KILL_SEED", "1"))
CHANGES: dict[str, dict[str, int]] = {"old": {}, "new": {"max_num_seqs": 4}}
SCRIPT = Script(replies=[says("greet", "hello world")], load_seconds=0.1)


@pytest.mark.parametrize("api_servers", [1, 2])
def test_kills_at_random_moments(state: DeploymentState, tmp_path: Path, api_servers: int) -> None:
    """Live changes and swaps, beside and in place, of a server that stays a server whatever is killed."""
    random_ = random.Random(SEED)
    port = free_port()
    live, other = {"served_names": ["scripted", "live"]}, {"max_num_seqs": 4}
    specs = [
        wanted(tmp_path / "a", SCRIPT, port=port, api_servers=api_servers, **changes)
        for changes in ({}, live, other, {**other, **live, "restart": "on-failure"})
    ]
    victims = VICTIMS_OF_MANY if api_servers > 1 else VICTIMS
    now = specs[0]
    apply(state, now)
    for round_ in range(ROUNDS):
        now, victim, has_room = choose(random_, specs, now), random_.choice(victims), random_.random() < 0.5
        seconds = random_.random() * 1.5
        print(f"round {round_}: {victim}, after {seconds:.2f} s, {'beside' if has_room else 'in place'}")
        before = Family.of(state)
        kill_at(seconds, in_a_process(state, now, has_room=has_room), state, victim, before)
        apply(state, now, has_room=has_room)
        check_declared(state, now)
    check_gone(state, port)


@pytest.mark.parametrize(
    ("moment", "how", "then"),
    [
        ("spawn", "beside", "old"),
        ("connect", "beside", "new"),
        ("drain", "beside", "old"),
        ("drain", "in place", "old"),
        ("spawn", "in place", "new"),
    ],
)
def test_an_apply_killed_at_a_moment(
    state: DeploymentState, tmp_path: Path, moment: str, how: str, then: Literal["old", "new"]
) -> None:
    """Going back to what ran before, and on to what was asked for, both end as declared."""
    port = free_port()
    what = {changed: wanted(tmp_path / "a", SCRIPT, port=port, **each) for changed, each in CHANGES.items()}
    apply(state, what["old"])
    killed = in_a_process(state, what["new"], has_room=how == "beside", heard=KilledAtPhase(moment))
    killed.join(60.0)
    assert killed.exitcode == -signal.SIGKILL
    apply(state, what[then])
    check_declared(state, what[then])
    check_gone(state, port)


def test_an_interrupted_reload_is_told_again(state: DeploymentState, tmp_path: Path) -> None:
    """The server may have taken the new plan, but the killed apply could not record it."""
    first = wanted(tmp_path / "a", SCRIPT)
    current = apply(state, first).current
    new = wanted(tmp_path / "a", SCRIPT, served_names=["other"])
    generation = state.new_generation(new.plan, "", {})
    state.write_current(msgspec.structs.replace(current, pending=generation.number))
    control.reload(current.process, state.generation(1), generation.plan_path)
    assert served(current.url) == ["other"]
    assert apply(state, first).how == "reload"
    assert served(current.url) == ["scripted", "alias"]
    check_declared(state, first)
    result = state.generation(2).result()
    assert result is not None
    assert (result.outcome, result.reason) == ("failed", "the command that applied it was killed")


def served(url: str) -> list[str]:
    return [each["id"] for each in httpx.get(f"{url}/v1/models").json()["data"]]
