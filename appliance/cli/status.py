"""`appliance status`: prints what runs, since when, and its state."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.base.environ import state_dir
from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.units import format_size
from appliance.deploy.adapters import adapter_status, adapter_text
from appliance.deploy.experts import experts_text, read_experts
from appliance.deploy.graphs import read_graphs
from appliance.deploy.lock import owner_of
from appliance.deploy.naming import find_deployment
from appliance.deploy.observe import observe
from appliance.deploy.pause import pause_text, read_pause
from appliance.deploy.preemption import read_swap, swap_text
from appliance.deploy.probe import ask_metrics
from appliance.deploy.process import descendants, resident_bytes
from appliance.deploy.reconcile import Readiness
from appliance.deploy.replicas import replica_status, replicas_text
from appliance.deploy.sleep import read_sleep, sleep_text
from appliance.deploy.speculation import read_speculation
from appliance.deploy.state import DeploymentState, deployment_names
from appliance.deploy.usage import read_usage, usage_text
from appliance.deploy.weights import read_weights, weights_text
from appliance.plan.boot import BootReport, read_boot_report

_READERS: Final[dict[str, Callable[[str], dict[str, Any] | str | None]]] = {
    "speculation": read_speculation,
    "graphs": read_graphs,
    "experts": read_experts,
    "sleep": read_sleep,
    "paused": read_pause,
    "new_weights": read_weights,
    "swap": read_swap,
}  # of the server's metrics
_LIVE = (Readiness.READY, Readiness.NOT_READY, Readiness.FAILED)


def run(name: str = "", as_json: bool = False, *, with_usage: bool = False) -> int:
    """Prints one deployment, or all of this machine. Returns 0 if all of them are ready, else 1.

    with_usage: what was asked of each since it started, too.
    """
    root = state_dir()
    states = [find_deployment(name)] if name else [DeploymentState(root, each) for each in deployment_names(root)]
    found = [_status(state, with_usage=with_usage) for state in states]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif not found:
        print("nothing is deployed on this machine")
    else:
        print("\n\n".join(_text(each) for each in found))
    return ExitCode.OK if all(each["readiness"] == Readiness.READY for each in found) else ExitCode.INTERNAL


def _status(state: DeploymentState, *, with_usage: bool) -> dict[str, Any]:
    seen = observe(state)
    owner = owner_of(state.lock_path)
    body: dict[str, Any] = {
        "name": state.name,
        "readiness": seen.readiness.value,
        "reason": seen.reason,
        "changed_by": owner.command if owner else None,
    }
    current = seen.current
    if current is None:
        return body
    body |= {
        "pid": current.process.pid,
        "url": current.url,
        "model": current.served_name,
        "generation": current.generation,
        "engine_sha256": current.engine_sha256,
        "adapters_sha256": current.adapters_sha256,
        "serving_sha256": current.serving_sha256,
        "spec": current.spec_file,
        "version": current.appliance_version,
    }
    if seen.readiness in _LIVE:
        body["uptime_s"] = round(time.time() - current.started_at, 1)
        body["memory_bytes"] = resident_bytes([current.process, *descendants(current.process)])
        metrics = ask_metrics(current.url)
        body["replicas"] = replica_status(current.url, metrics or "")
        body |= {name: read(metrics or "") for name, read in _READERS.items()}
        body["adapters"] = [adapter_status(each) for each in seen.adapters or ()]
        report = _boot_report(state.generation(current.home_generation).folder)
        weights = None if report is None else report.weights
        body["weights"] = None if weights is None else msgspec.to_builtins(weights)
        body["locked_bytes"] = None if report is None else report.locked_bytes
        if with_usage:
            body["usage"] = None if metrics is None else read_usage(metrics)
    return body


def _boot_report(folder: Path) -> BootReport | None:
    """Returns what the running engine measured at its start; None while it starts."""
    try:
        return read_boot_report(folder)
    except ApplianceError:
        return None


def _origin(weights: dict[str, Any] | None) -> str | None:
    if weights is None:
        return None
    size, seconds = format_size(weights["size_bytes"]), f"{weights['seconds']:.2f} s"
    if weights["origin"] == "cache":
        return f"{size} from {weights['file']} in {seconds}"
    return f"{size} packed in {seconds} ({weights['reason']})"


def _drafts(speculation: dict[str, Any] | None) -> str | None:
    """Returns how often drafts were accepted, by method, and what steps did with them."""
    if speculation is None:
        return None
    methods = [
        f"{name} {each['accepted']:,} of {each['tokens']:,} tokens accepted"
        for name, each in sorted(speculation["methods"].items())
    ]
    steps = [f"{name.replace('_', ' ')} {count:,}" for name, count in speculation["steps"].items() if count]
    return "; ".join([*methods, f"steps: {', '.join(steps) or 'none yet'}"])


def _graphs(graphs: dict[str, Any] | None) -> str | None:
    if graphs is None:
        return None
    return f"{graphs['captured']} of {graphs['planned']} sizes captured, in {graphs['seconds']:.2f} s"


def _text(status: dict[str, Any]) -> str:
    shown = {
        "state": status["readiness"] + (f" ({status['reason']})" if status["reason"] else ""),
        "url": status.get("url"),
        "model": status.get("model"),
        "pid": status.get("pid"),
        "uptime": _duration(status["uptime_s"]) if "uptime_s" in status else None,
        "memory": f"{status['memory_bytes'] / 2**20:.0f} MiB" if "memory_bytes" in status else None,
        "replicas": replicas_text(status.get("replicas")),
        "weights": _origin(status.get("weights")),
        "locked": None if (locked := status.get("locked_bytes")) is None else f"{format_size(locked)} of its memory",
        "replaced": weights_text(status.get("new_weights")),
        "adapters": "; ".join(map(adapter_text, status.get("adapters", ()))) or None,
        "drafts": _drafts(status.get("speculation")),
        "graphs": _graphs(status.get("graphs")),
        "experts": experts_text(status.get("experts")),
        "sleep": sleep_text(status.get("sleep")),
        "paused": pause_text(status.get("paused")),
        "preempted": swap_text(status.get("swap")),
        "generation": status.get("generation"),
        "plan": status["engine_sha256"][:12] if "engine_sha256" in status else None,
        "spec": status.get("spec"),
        "changing": status["changed_by"],
    }
    rows = [f"  {name:<11}{value}" for name, value in shown.items() if value is not None]
    if "usage" in status:
        rows += ["", *(f"  {name:<11}{value}" for name, value in usage_text(status["usage"]))]
    return "\n".join([status["name"], *rows])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
