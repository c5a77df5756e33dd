"""The adapters of a deployment: what differs between two sets, and what a running server says that it serves."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from appliance.deploy.follow import EventReader
from appliance.engine.adapter_messages import AdapterReport
from appliance.plan.types import AdapterPlan, EnginePlan
from appliance.service.status_file import STATUS_FILE

SERVED = "adapters.served"  # the path in a plan


def by_name(plan: dict[str, Any]) -> dict[str, Any]:
    """Returns a plan's data with its adapters by name, so that each is compared with itself."""
    adapters = plan["adapters"]
    if adapters is None:
        return plan
    return {**plan, "adapters": {**adapters, "served": {each["name"]: each for each in adapters["served"]}}}


def shown_whole(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns flat values in which an adapter that only one side has is one value: its digest."""
    names = {side: {_adapter(path) for path in values} for side, values in (("old", before), ("new", after))}
    alone = (names["old"] ^ names["new"]) - {None}
    return _collapsed(before, alone), _collapsed(after, alone)


def _collapsed(values: Mapping[str, Any], alone: set[str | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in values.items():
        adapter = _adapter(path)
        if adapter not in alone:
            found[path] = value
        elif path.endswith(".sha256"):
            assert adapter is not None
            found[adapter] = value
    return found


def _adapter(path: str) -> str | None:
    """Returns the path of the adapter that a path is of; names of adapters may have dots, fields have none."""
    return path.rpartition(".")[0] if path.startswith(f"{SERVED}.") else None


def served_now(folder: Path) -> tuple[AdapterReport, ...] | None:
    """Returns the adapters that the server with this folder serves, as it said last; None if it said nothing."""
    events = [event for event in EventReader(folder / STATUS_FILE).read() if event.name == "adapters"]
    return msgspec.convert(events[-1].values["adapters"], tuple[AdapterReport, ...]) if events else None


def with_served(plan: EnginePlan, served: tuple[AdapterReport, ...] | None) -> EnginePlan:
    """Returns the plan with the adapters that are served in place of those that it lists."""
    if plan.adapters is None or served is None:
        return plan
    adapters = msgspec.structs.replace(plan.adapters, served=tuple(each.adapter for each in served))
    return msgspec.structs.replace(plan, adapters=adapters)


def adapter_drift(planned: EnginePlan, served: tuple[AdapterReport, ...] | None) -> Iterator[tuple[str, str, str]]:
    """Yields the name of each adapter that is served otherwise than planned, what was planned, and what is served."""
    then = {each.name: _said(each) for each in (planned.adapters.served if planned.adapters is not None else ())}
    now = then if served is None else {each.adapter.name: _said(each.adapter) for each in served}
    for name in [*then, *(name for name in now if name not in then)]:
        if then.get(name) != now.get(name):
            yield name, then.get(name, "not served"), now.get(name, "not served")


def _said(adapter: AdapterPlan) -> str:
    parts = [f"sha256:{adapter.sha256[:12]}", f"scale {adapter.scale:g}" if adapter.scale != 1.0 else ""]
    return " ".join(filter(None, [*parts, "pinned" if adapter.pinned else ""]))


def adapter_status(report: AdapterReport) -> dict[str, Any]:
    """Returns what a server says of an adapter that it serves."""
    adapter = report.adapter
    return {
        "name": adapter.name,
        "sha256": adapter.sha256,
        "scale": adapter.scale,
        "pinned": adapter.pinned,
        "effective_modules": f"{report.effective_modules}/{report.num_modules}",
        "is_verified": report.is_verified,
        "note": report.note,
    }


def adapter_text(status: Mapping[str, Any]) -> str:
    """Returns the same as words."""
    what = status["note"] or ("verified" if status["is_verified"] else "not verified")
    return f"{status['name']} {status['effective_modules']} modules ({what})"
