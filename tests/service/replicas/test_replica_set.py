"""Changes that reach all replicas or none, and what is told of all as of one."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.engine.messages import BootPhase, ErrorKind
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.plan.types import AdapterPlan, AdaptersPlan, EnginePlan
from appliance.service.calls import EngineCalls
from appliance.service.errors import RequestFailedError
from appliance.service.health import EngineState, Health
from appliance.service.intake import OPEN, failed
from appliance.service.metrics import ServiceMetrics
from appliance.service.replicas import replica_set
from appliance.service.replicas.health import SetHealth
from appliance.service.replicas.prefixes import CHUNK_TOKENS, chain_of
from appliance.service.replicas.replica_set import ReplicaSet
from appliance.service.supervisor import EnginePaths
from tests.engine.plans import scripted_plan
from tests.service.replicas.traces import request


class Watched:
    """In place of a Supervisor: an engine that takes a set of adapters, refuses it, or is away."""

    behaves: dict[int, str]
    all: "dict[int, Watched]"

    def __init__(self, plan: EnginePlan, paths: EnginePaths, client: object, *, replica: int, **_: Any) -> None:
        self.serves, self.begins_with = names(plan), names(plan)
        self.number = replica
        self.health = Health(state=EngineState.READY, reason="")
        self.all[replica] = self

    async def change_adapters(self, plan: EnginePlan) -> None:
        match self.behaves.get(self.number):
            case "refuses" if "new" in names(plan):
                raise RequestFailedError(ErrorKind.INTERNAL, "it does not fit")
            case "is away":
                raise RequestFailedError(ErrorKind.UNAVAILABLE, "it is gone")
        self.serves = self.begins_with = names(plan)

    def start_with(self, plan: EnginePlan) -> None:
        self.begins_with = names(plan)


def names(plan: EnginePlan) -> tuple[str, ...]:
    assert plan.adapters is not None
    return tuple(each.name for each in plan.adapters.served)


def with_adapters(folder: Path, *served: str) -> EnginePlan:
    plan = scripted_plan(folder, replicas=3, data=3)
    adapters = tuple(AdapterPlan(name=each, path="", sha256=each, rank=1, num_modules=1) for each in served)
    fields: dict[str, Any] = dict.fromkeys(AdaptersPlan.__struct_fields__)
    return msgspec.structs.replace(plan, adapters=AdaptersPlan(**(fields | {"served": adapters, "max_loras": 2})))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    class Ours(Watched):
        behaves: dict[int, str] = {}
        all: dict[int, Watched] = {}

    monkeypatch.setattr(replica_set, "Supervisor", Ours)
    return Ours


def replicas_of(folder: Path) -> ReplicaSet:
    return ReplicaSet(with_adapters(folder, "old"), EnginePaths(folder, folder), ServiceMetrics("m"))


async def test_one_that_is_away_begins_with_the_new_adapters(tmp_path: Path, watched: type[Watched]) -> None:
    watched.behaves[1] = "is away"
    await replicas_of(tmp_path).change_adapters(with_adapters(tmp_path, "old", "new"))
    assert [each.serves for each in watched.all.values()] == [("old", "new"), ("old",), ("old", "new")]
    assert [each.begins_with for each in watched.all.values()] == [("old", "new")] * 3


@pytest.mark.parametrize("others", ["take it", "is away"])
async def test_where_one_refuses_all_are_as_before(tmp_path: Path, watched: type[Watched], others: str) -> None:
    watched.behaves.update({0: others, 1: others, 2: "refuses"})
    with pytest.raises(ApplianceError, match="it does not fit"):
        await replicas_of(tmp_path).change_adapters(with_adapters(tmp_path, "old", "new"))
    assert {each.serves for each in watched.all.values()} == {("old",)}
    assert {each.begins_with for each in watched.all.values()} == {("old",)}


async def test_where_all_are_away_nothing_changes(tmp_path: Path, watched: type[Watched]) -> None:
    watched.behaves.update(dict.fromkeys(range(3), "is away"))
    with pytest.raises(ApplianceError, match="no engine is there"):
        await replicas_of(tmp_path).change_adapters(with_adapters(tmp_path, "new"))
    assert {each.begins_with for each in watched.all.values()} == {("old",)}


def test_requests_go_to_those_that_take_them(tmp_path: Path, watched: type[Watched]) -> None:
    found = replicas_of(tmp_path)
    clients = [each.client for each in found._replicas.values()]
    for client in clients:
        client.intake = failed("for now")
    with pytest.raises(RequestFailedError, match="for now"):
        found.client.check_admission()
    with pytest.raises(RequestFailedError, match="for now"):
        assert found.client.engines
    clients[1].intake = OPEN
    found.client.check_admission()
    assert list(found.client.engines) == [clients[1]]


async def test_a_replica_whose_cache_was_emptied_draws_no_more_by_it(
    tmp_path: Path, watched: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(*_: object, **__: object) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(WeightStats()))

    async def emptied(*_: object, **__: object) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(True))

    monkeypatch.setattr(EngineCalls, "reset_prefix_cache", emptied)
    for name in ("call", "pause", "sleep", "update_weights", "settle_weights"):
        monkeypatch.setattr(EngineCalls, name, answered)
    replica = replicas_of(tmp_path)._replicas[0]
    client, sent = replica.client, request(list(range(3 * CHUNK_TOKENS)))
    chain = chain_of(sent)
    for empties, ask in (
        (False, lambda: client.call("stats")),
        (True, client.reset_prefix_cache),
        (False, lambda: client.pause("keep", clears_cache=False)),
        (True, lambda: client.pause("wait", clears_cache=True)),
        (True, lambda: client.sleep(1)),
        (True, lambda: client.update_weights(WeightUpdate())),
        (False, lambda: client.settle_weights(is_wanted=False)),
        (True, lambda: client.settle_weights(is_wanted=True)),
    ):
        replica.note(sent, chain, now=1)
        await ask()
        assert (replica.known(chain).num_tokens == 0) == empties


def test_the_state_of_all() -> None:
    def state_of(*states: EngineState) -> SetHealth:
        return SetHealth(lambda: {number: Health(state=each, reason=each.value) for number, each in enumerate(states)})

    ready, starting, restarting, failed_one = (
        EngineState.READY, EngineState.STARTING, EngineState.RESTARTING, EngineState.FAILED,
    )  # fmt: skip
    assert state_of(failed_one, ready).is_ready
    assert state_of(failed_one, ready).reason == "engine 0: failed"
    assert state_of(failed_one, ready).reasons() == []
    assert state_of(failed_one, restarting).state is restarting
    assert state_of(starting, restarting).state is starting
    assert state_of(failed_one, failed_one).state is failed_one
    assert state_of(failed_one, restarting).reasons() == ["engine 0: failed; engine 1: restarting"]


def test_the_phase_of_all_is_that_of_the_slowest() -> None:
    def phase(done: int, *, ended: bool = False) -> dict[str, BootPhase]:
        return {"weights": BootPhase(name="weights", seconds=1.0, done=done, total=10, ended=ended)}

    healths = {0: Health(phases=phase(0, ended=True)), 1: Health(phases=phase(4)), 2: Health(phases=phase(7))}
    assert SetHealth(lambda: healths).phases == phase(4)
