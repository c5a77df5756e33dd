"""`appliance history`: prints the generations of a deployment, how each began to serve, or why it failed."""

import time
from typing import Any

import msgspec

from appliance.base.errors import ExitCode
from appliance.deploy.naming import find_deployment
from appliance.deploy.state import DeploymentState, Generation
from appliance.plan.render import table


def run(name: str = "", as_json: bool = False) -> int:
    """Prints the generations, the newest first."""
    state = find_deployment(name)
    current = state.current()
    serving = current.generation if current is not None else 0
    rows = [_row(each, serving) for each in reversed(state.generations())]
    print(msgspec.json.format(msgspec.json.encode(rows)).decode() if as_json else _as_text(state, rows))
    return ExitCode.OK


def _row(generation: Generation, serving: int) -> dict[str, Any]:
    result = generation.result()
    body: dict[str, Any] = {"generation": generation.number, "serving": generation.number == serving}
    if result is None:
        return {**body, "outcome": "unfinished", "how": "", "cause": "", "at": None, "seconds": None, "reason": ""}
    return body | msgspec.structs.asdict(result)


def _as_text(state: DeploymentState, rows: list[dict[str, Any]]) -> str:
    if not rows:
        return f"{state.name}: no generations"
    lines = [("generation", "when", "outcome", "how", "because")]
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"])) if row["at"] else ""
        because = f"rollback to {row['rollback_of']}: " if row.get("rollback_of") else ""
        lines.append((str(row["generation"]), when, _outcome(row), row["how"], because + row["cause"]))
        lines += [("", "", "", "", f"  {line}") for line in row["reason"].splitlines()]
    return "\n".join(table(lines))


def _outcome(row: dict[str, Any]) -> str:
    if row["outcome"] != "serving":
        return str(row["outcome"])
    return "serves" if row["serving"] else "served"
