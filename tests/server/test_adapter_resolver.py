"""Adapters that are looked for when a request names them."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.plan.hashes import with_hashes
from appliance.plan.serving_types import AdapterRulesPlan, KeyPlan
from appliance.plan.types import AdaptersPlan, EnginePlan
from appliance.requests.adapters import is_allowed
from appliance.requests.errors import ApiError
from appliance.server.adapters.resolver import MOST_WAITING, AdapterResolver
from appliance.server.http.callers import CALLER, Caller, check_unlimited
from appliance.service.adapter_sets import AdapterChange, AdapterSetError, changed_set
from appliance.service.metrics import ServiceMetrics
from tests.e2e.served import make_random_adapter
from tests.engine.plans import scripted_plan
from tests.server import resolvers


class Set:
    """The set that a server would serve."""

    def __init__(self, folder: Path, max_cpu_loras: int = 2) -> None:
        adapters = AdaptersPlan(max_loras=1, max_rank=8, dtype="f32", num_modules=1, max_cpu_loras=max_cpu_loras)
        self.plan: EnginePlan = with_hashes(msgspec.structs.replace(scripted_plan(folder), adapters=adapters))
        self.num_changes = 0

    @property
    def names(self) -> list[str]:
        assert self.plan.adapters is not None
        return [each.name for each in self.plan.adapters.served]

    async def change(self, change: AdapterChange) -> None:
        await asyncio.sleep(0)
        self.num_changes += 1
        self.plan = changed_set(self.plan, change)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    for seed, name in enumerate(("one", "two", "three")):
        make_random_adapter(tmp_path / "shelf" / name, seed)
    return tmp_path / "shelf"


def find(resolver: AdapterResolver, served: Set, *names: str) -> list[bool]:
    async def run() -> list[bool]:
        return list(await asyncio.gather(*(resolver.load(lambda: served.plan, served.change, each) for each in names)))

    return asyncio.run(run())


def test_a_folder_of_that_name_is_loaded_once(shelf: Path, tmp_path: Path) -> None:
    served, resolver = Set(tmp_path), AdapterResolver(AdapterRulesPlan(resolver_dir=str(shelf)))
    assert find(resolver, served, "one", "one", "none", "two") == [True, True, False, True]
    assert (served.names, served.num_changes) == (["one", "two"], 2)


def test_the_one_that_was_used_longest_ago_gives_way(shelf: Path, tmp_path: Path) -> None:
    served, resolver = Set(tmp_path), AdapterResolver(AdapterRulesPlan(resolver_dir=str(shelf)))
    find(resolver, served, "one", "two")
    resolver.note_use("one")
    find(resolver, served, "three")
    assert served.names == ["one", "three"]
    assert find(resolver, served, "two") == [True]


def test_what_others_asked_for_does_not_give_way(shelf: Path, tmp_path: Path) -> None:
    served, resolver = Set(tmp_path, max_cpu_loras=1), AdapterResolver(AdapterRulesPlan(resolver_dir=str(shelf)))
    find(resolver, served, "one")
    assert served.plan.adapters is not None
    [found] = served.plan.adapters.served
    asyncio.run(served.change(AdapterChange(load=msgspec.structs.replace(found, origin="request"), replaces=True)))
    with pytest.raises(ApiError, match="1 adapters may be in memory"):
        find(resolver, served, "two")
    assert served.names == ["one"]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/one", "", "one\n", ".one"])
def test_names_that_are_no_folder_s_are_not_looked_for(shelf: Path, tmp_path: Path, name: str) -> None:
    assert find(AdapterResolver(AdapterRulesPlan(resolver_dir=str(shelf))), Set(tmp_path), name) == [False]


def test_code_of_the_operator_is_asked_after_the_folder(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolvers, "FOLDER", shelf)
    served, resolver = Set(tmp_path), AdapterResolver(AdapterRulesPlan(resolver="tests.server.resolvers.find"))
    assert find(resolver, served, "mine/one", "one", "mine/none") == [True, False, False]
    assert served.names == ["mine/one"]
    with pytest.raises(ApplianceError, match="cannot be imported"):
        AdapterResolver(AdapterRulesPlan(resolver="no.such.module"))
    with pytest.raises(ApplianceError, match="is no coroutine function"):
        AdapterResolver(AdapterRulesPlan(resolver="os.path.join"))


def test_many_that_wait_are_refused(shelf: Path, tmp_path: Path) -> None:
    served, resolver = Set(tmp_path), AdapterResolver(AdapterRulesPlan(resolver_dir=str(shelf)))
    with pytest.raises(ApiError, match="many adapters are being looked for"):
        find(resolver, served, *["one"] * (MOST_WAITING + 1))


def test_links_lead_out_of_no_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    allowed = [str(inside)]
    assert is_allowed(inside / "x", allowed)
    for path in (outside, inside / "link", inside / ".." / "outside", tmp_path):
        assert not is_allowed(path, allowed)
    assert is_allowed(outside, [])


@pytest.mark.parametrize(("models", "status"), [(None, None), (("one",), 403)])
def test_a_key_that_is_limited_to_models_changes_no_set(models: tuple[str, ...] | None, status: int | None) -> None:
    caller = Caller("team", KeyPlan(models=models), ServiceMetrics("m"))
    token = CALLER.set(caller)
    try:
        check_unlimited()
        found = None
    except ApiError as error:
        found = error.status
    finally:
        CALLER.reset(token)
    assert found == status


def test_a_set_without_places_or_with_another_name_is_refused(tmp_path: Path, shelf: Path) -> None:
    plan = scripted_plan(tmp_path)
    with pytest.raises(AdapterSetError, match="no places"):
        changed_set(plan, AdapterChange(unload="x"))
    served = Set(tmp_path)
    with pytest.raises(AdapterSetError, match="'x' is not served"):
        changed_set(served.plan, AdapterChange(unload="x"))
