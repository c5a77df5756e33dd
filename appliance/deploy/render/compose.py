"""A compose file: one service, its cache and state as volumes, the spec as a config."""

from typing import Any

from appliance.deploy.render.container import (
    CACHE_FOLDER,
    MODEL_FOLDER,
    PROBE_PERIOD_S,
    PROBE_TIMEOUT_S,
    SPEC_FILE,
    STATE_FOLDER,
    UID,
    arguments,
    num_live_failures,
)
from appliance.deploy.render.documents import dump
from appliance.deploy.render.workload import RenderError, ServerWorkload


def render(workload: ServerWorkload) -> dict[str, str]:
    """Raises RenderError where several replicas are asked for: they would share one port."""
    if workload.options.replicas > 1 or workload.options.max_replicas:
        raise RenderError("a compose file publishes one port for one replica", hint="render --to kubernetes")
    document = {
        "name": workload.name,
        "services": {workload.name: _service(workload)},
        "configs": {"spec": {"content": workload.spec_text.replace("$", "$$")}},  # compose has its own ${...}
        "volumes": {"cache": {}, "state": {}},
    }
    return {"compose.yaml": dump([document])}


def _service(workload: ServerWorkload) -> dict[str, Any]:
    volumes: list[Any] = [f"cache:{CACHE_FOLDER}", f"state:{STATE_FOLDER}"]
    if workload.model_path is not None:
        mounted = MODEL_FOLDER / workload.model_path.name
        volumes.append({"type": "bind", "source": str(workload.model_path), "target": str(mounted), "read_only": True})
    if workload.key_path is not None:
        key = str(workload.key_path)
        volumes.append({"type": "bind", "source": key, "target": key, "read_only": True})
    service = {
        "image": workload.options.image,
        "command": arguments(workload),
        "user": str(UID),
        "ports": [f"{workload.port}:{workload.port}"],
        "configs": [{"source": "spec", "target": str(SPEC_FILE)}],
        "volumes": volumes,
        "environment": {name: f"${{{name}:?}}" for name in workload.variables},
        "healthcheck": _healthcheck(workload),
        "stop_grace_period": f"{workload.stop_s}s",
        "restart": "unless-stopped" if workload.restart.policy == "on-failure" else "no",
        "mem_limit": workload.memory_bytes,
        "cpus": float(workload.num_cores),
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    return {key: value for key, value in service.items() if value not in ({}, [], 0)}


def _healthcheck(workload: ServerWorkload) -> dict[str, Any]:
    url = f"http://127.0.0.1:{workload.port}/livez"
    script = f"import urllib.request; urllib.request.urlopen({url!r}, timeout={PROBE_TIMEOUT_S - 1})"
    return {
        "test": ["CMD", "python", "-c", script],
        "interval": f"{PROBE_PERIOD_S}s",
        "timeout": f"{PROBE_TIMEOUT_S}s",
        "retries": num_live_failures(workload),
        "start_period": f"{workload.start_timeout_s}s",
    }
