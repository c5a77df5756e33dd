"""`appliance diff`: prints what an apply would change, the cost of each change, and the actions."""

import msgspec

from appliance.base.environ import state_dir
from appliance.base.errors import ExitCode
from appliance.cli.arguments.lifecycle import DiffArguments
from appliance.cli.spec_target import spec_target
from appliance.deploy.difference import PendingChanges, difference
from appliance.deploy.observe import observe
from appliance.deploy.reconcile import shown
from appliance.deploy.state import DeploymentState
from appliance.plan.prepare import prepare
from appliance.plan.render import table


def run(arguments: DiffArguments) -> int:
    """Returns 2 if an apply would change something, else 0."""
    prepared = prepare(*spec_target(arguments.spec, arguments.overrides))
    state = DeploymentState(state_dir(), prepared.plan.name)
    found = difference(state, observe(state), prepared.plan, prepared.loaded.resolved())
    print(_as_json(found) if arguments.as_json else _as_text(found))
    return ExitCode.INVALID if found.is_pending else ExitCode.OK


def _as_text(found: PendingChanges) -> str:
    runs = f"generation {found.generation} runs" if found.generation else "nothing runs"
    if not found.is_pending:
        return f"{found.name}: {runs}; no change"
    lines = [f"{found.name}: {runs}"]
    if found.fields:
        rows = [("field", "now", "then", "apply")]
        rows += [(each.path, shown(each.old), shown(each.new), each.apply) for each in found.fields]
        lines += ["", *table(rows)]
    changes = [change for action in found.actions for change in action.changes]
    if changes:
        rows = [("plan", "now", "then", "apply")]
        for each in changes:
            values = ("***", "***") if each.is_secret else (shown(each.old), shown(each.new))
            rows.append((each.path, *values, each.apply))
        lines += ["", *table(rows)]
    else:
        lines += ["", f"because: {found.actions[0].cause}"]
    return "\n".join([*lines, "", found.description, f"expected unavailability: {_unavailable(found)}"])


def _unavailable(found: PendingChanges) -> str:
    if found.unavailable_s is None:
        return "not known yet"
    return "none" if not found.unavailable_s else f"about {found.unavailable_s:g} s, as the last start took"


def _as_json(found: PendingChanges) -> str:
    body = {
        "name": found.name,
        "pending": found.is_pending,
        "generation": found.generation,
        "how": found.how,
        "unavailable_s": found.unavailable_s,
        "actions": [{"verb": each.verb.value, "cause": each.cause, "apply": each.apply} for each in found.actions],
        "fields": [{"path": each.path, "old": each.old, "new": each.new, "apply": each.apply} for each in found.fields],
        "plan": [
            {
                "path": each.path,
                "old": "***" if each.is_secret else each.old,
                "new": "***" if each.is_secret else each.new,
                "apply": each.apply,
            }
            for action in found.actions
            for each in action.changes
        ],
    }
    return msgspec.json.format(msgspec.json.encode(body)).decode()
