"""The part of pass `serving` that plans the servers of tools."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.serving_types import ToolServerPlan
from appliance.spec.paths import format_path, parse_path
from appliance.spec.sections.decoding import ToolServerSection


def plan_tool_servers(inputs: PlanInputs, ledger: Ledger) -> tuple[ToolServerPlan, ...]:
    servers = inputs.spec.decoding.tool_server
    return tuple(_planned(server, f"decoding.tool_server[{place}]", ledger) for place, server in enumerate(servers))


def _planned(server: ToolServerSection, path: str, ledger: Ledger) -> ToolServerPlan:
    loaded = ledger.loaded

    def unfilled(values: Mapping[str, str], field: str) -> dict[str, str]:
        return {
            name: loaded.unfilled(format_path((*parse_path(path), field, name)), value)
            for name, value in values.items()
        }

    command = enumerate(server.command or ())
    plan = ToolServerPlan(
        name=server.name,
        command=tuple(loaded.unfilled(f"{path}.command[{place}]", each) for place, each in command),
        url=None if server.url is None else loaded.unfilled(f"{path}.url", server.url),
        env=unfilled(server.env, "env"),
        headers=unfilled(server.headers, "headers"),
        allowed_tools=None if server.allowed_tools is None else tuple(server.allowed_tools),
        timeout_s=server.timeout,
        max_result_bytes=server.max_result_bytes,
        max_calls=server.max_calls,
    )
    texts = (*plan.command, plan.url or "", *plan.env.values(), *plan.headers.values())
    reads_files = any("${file:" in text for text in texts)
    return msgspec.structs.replace(plan, folder=str(Path(loaded.file).resolve().parent)) if reads_files else plan
