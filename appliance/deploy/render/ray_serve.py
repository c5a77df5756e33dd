"""A Ray Serve configuration: an application of engines that scale, and of a front that passes requests to them."""

from typing import Any, Final

from appliance.deploy.render.container import PROBE_PERIOD_S, PROBE_TIMEOUT_S
from appliance.deploy.render.documents import dump
from appliance.deploy.render.workload import RenderError, ServerWorkload

APPLICATION: Final = "appliance.ray.serve:app"
FRONT_TARGET: Final = 256  # open requests of a front, which does little with each
_QUEUE: Final = 2  # requests that a replica takes, for each that it runs


def render(workload: ServerWorkload) -> dict[str, str]:
    """Raises RenderError for an API whose data replicas would have to share."""
    if "batches" in workload.asked_apis:
        message = "endpoints.apis lists batches, which one server keeps and works off; replicas share no store"
        raise RenderError(message, hint="remove it there; `appliance batch` with batch.backend: ray runs batch files")
    if workload.num_machines > 1 and not workload.is_on_ray:
        message = f"the ranks of {workload.num_machines} machines would join by hand"
        raise RenderError(message, hint="--set parallelism.backend=ray has Ray place them")
    return {"serve.yaml": dump([_config(workload)], _needs(workload))}


def _config(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": workload.host,
            "port": workload.port,
            "request_timeout_s": None,
            "keep_alive_timeout_s": workload.drain_s,
        },
        "applications": [
            {
                "name": workload.name,
                "route_prefix": "/",
                "import_path": APPLICATION,
                "args": _arguments(workload),
                "deployments": [_front(workload), _engine(workload)],
            }
        ],
    }


def _arguments(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "file": str(workload.spec_path),
        "overrides": list(workload.overrides),
        "num_cores": workload.num_cores,
        "memory_bytes": workload.memory_bytes or None,
        "max_body_bytes": workload.max_body_bytes,
        "spec": workload.spec_text,
    }


def _front(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "name": "front",
        "autoscaling_config": _autoscaling(1, _most(workload), FRONT_TARGET),
        "max_ongoing_requests": 2 * FRONT_TARGET,
        "graceful_shutdown_timeout_s": workload.drain_s,
        "ray_actor_options": {"num_cpus": 1},
    }


def _engine(workload: ServerWorkload) -> dict[str, Any]:
    target = workload.max_num_seqs * workload.num_replicas
    return {
        "name": "engine",
        "autoscaling_config": _autoscaling(workload.options.replicas, _most(workload), target),
        "max_ongoing_requests": _QUEUE * target,
        "max_queued_requests": -1 if workload.max_waiting is None else workload.max_waiting,
        "graceful_shutdown_timeout_s": workload.stop_s,
        "health_check_period_s": PROBE_PERIOD_S,
        "health_check_timeout_s": max(PROBE_TIMEOUT_S, workload.heartbeat_timeout_s),
        "ray_actor_options": _resources(workload),
    }


def _resources(workload: ServerWorkload) -> dict[str, Any]:
    found: dict[str, Any] = {"num_cpus": workload.num_cores}
    found |= {"memory": workload.memory_bytes} if workload.memory_bytes else {}
    return found | ({"num_gpus": workload.num_accelerators} if workload.num_accelerators else {})


def _most(workload: ServerWorkload) -> int:
    return workload.options.max_replicas or workload.options.replicas


def _autoscaling(least: int, most: int, target: int) -> dict[str, Any]:
    return {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}


def _needs(workload: ServerWorkload) -> str:
    """What the nodes must have beside this file."""
    lines = ["Needs appliance[ray] on every node"]
    if workload.variables:
        lines.append(f"Needs these variables where Ray was started on each node: {', '.join(workload.variables)}")
    if workload.model_path is not None:
        lines.append(f"Needs {workload.model_path} on every node")
    return "\n".join(lines)
