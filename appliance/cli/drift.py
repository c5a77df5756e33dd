"""`appliance drift`: prints what has changed under a deployment since it was applied."""

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.deploy.drift import Drift, find_drift
from appliance.deploy.naming import find_deployment
from appliance.deploy.observe import observe
from appliance.deploy.reconcile import shown
from appliance.plan.render import table


def run(name: str = "", as_json: bool = False) -> int:
    """Returns 2 if something has changed, else 0. Raises ApplianceError if the deployment does not run."""
    state = find_deployment(name)
    seen = observe(state)
    if seen.current is None:
        raise ApplianceError(f"{state.name} does not run", hint="appliance apply starts it")
    found = find_drift(state, seen)
    print(_as_json(found) if as_json else _as_text(state.name, seen.current.generation, found))
    return ExitCode.INVALID if found else ExitCode.OK


def _as_text(name: str, generation: int, found: list[Drift]) -> str:
    if not found:
        return f"{name}: generation {generation} runs as it was applied"
    rows = [
        ("kind", "what", "then", "now"),
        *((each.kind, each.what, _text(each.then), _text(each.now)) for each in found),
    ]
    return "\n".join([f"{name}: generation {generation}", "", *table(rows)])


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _as_json(found: list[Drift]) -> str:
    rows = [{"kind": each.kind, "what": each.what, "then": each.then, "now": each.now} for each in found]
    return msgspec.json.format(msgspec.json.encode(rows)).decode()
