"""A LeaderWorkerSet: one server whose ranks are on several machines, with a pod for each.

The leader serves, and the workers join it. Both recover by themselves: the leader's supervisor starts its engine again,
and a worker joins again, so a pod that is lost does not have the others loaded anew.
"""

from typing import Any, Final

from appliance.base.environ import RANKS_TOKEN_VARIABLE
from appliance.deploy.render.container import arguments
from appliance.deploy.render.documents import dump
from appliance.deploy.render.kubernetes import cache_claim, needs, scraping
from appliance.deploy.render.pod import CONTAINER_SECURITY, labels, mounts, pod_spec, resources, secret, spec_map
from appliance.deploy.render.workload import RenderError, ServerWorkload

_LABEL: Final = "leaderworkerset.sigs.k8s.io"
# What the controller sets in each pod, as Kubernetes fills it into arguments.
_LEADER: Final = "$(LWS_LEADER_ADDRESS)"
_INDEX: Final = "$(LWS_WORKER_INDEX)"
_POD_ADDRESS: Final = "POD_ADDRESS"


def render(workload: ServerWorkload) -> dict[str, str]:
    """Raises RenderError where one machine has all ranks, and for autoscaling."""
    if workload.num_machines == 1:
        message = "a LeaderWorkerSet has a server on several machines, and parallelism.nnodes is 1"
        raise RenderError(message, hint="render --to kubernetes, or --set parallelism.nnodes=2")
    if workload.options.max_replicas is not None:
        message = "groups of pods scale by hand: kubectl scale leaderworkerset"
        raise RenderError(f"--max-replicas has no meaning here: {message}", hint="leave it out")
    documents = [spec_map(workload), cache_claim(workload), _group(workload), _service(workload)]
    return {f"{workload.name}.yaml": dump(documents, _needs(workload))}


def _group(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {
            "replicas": workload.options.replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": workload.num_machines,
                "restartPolicy": "None",
                "leaderTemplate": _template(workload, _leader(workload), scraping(workload)),
                "workerTemplate": _template(workload, _worker(workload), {}),
            },
        },
    }


def _template(workload: ServerWorkload, pod: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": labels(workload)}
    return {"metadata": {**metadata, "annotations": annotations} if annotations else metadata, "spec": pod}


def _leader(workload: ServerWorkload) -> dict[str, Any]:
    """The pod that serves. It listens for ranks at its own address, as its name may not be known yet."""
    pod = pod_spec(workload)
    (container,) = pod["containers"]
    container["args"] = [*arguments(workload), "--set", f"parallelism.master_addr=$({_POD_ADDRESS})"]
    own = {"name": _POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container["env"] = [own, *_environment(workload)]
    container["ports"].append({"name": "ranks", "containerPort": workload.ranks_port})
    return pod


def _worker(workload: ServerWorkload) -> dict[str, Any]:
    """A pod of ranks, whose number among the machines is its index. It has no probe: its ranks beat to the leader."""
    per_machine = str(workload.num_ranks)
    pod = pod_spec(workload)
    pod["containers"] = [
        {
            "name": "ranks",
            "image": workload.options.image,
            "args": [
                *("ranks", "join", f"{_LEADER}:{workload.ranks_port}"),
                *("--node-rank", _INDEX, "--ranks-per-node", per_machine),
            ],
            "env": _environment(workload),
            "resources": resources(workload),
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": mounts(workload),
        }
    ]
    return pod


def _environment(workload: ServerWorkload) -> list[dict[str, Any]]:
    names = dict.fromkeys((*workload.variables, RANKS_TOKEN_VARIABLE))
    return [secret(workload, name) for name in names]


def _service(workload: ServerWorkload) -> dict[str, Any]:
    leaders = {f"{_LABEL}/name": workload.name, f"{_LABEL}/worker-index": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{workload.name}-http", "labels": labels(workload)},
        "spec": {"selector": leaders, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _needs(workload: ServerWorkload) -> str:
    lines = [
        "Needs the LeaderWorkerSet controller",
        f"Needs a Secret {workload.name}-env with: {', '.join((*workload.variables, RANKS_TOKEN_VARIABLE))}",
        "Needs a network between these pods that strangers cannot reach",
        *(line for line in needs(workload).splitlines() if not line.startswith(f"Needs a Secret {workload.name}-env")),
    ]
    return "\n".join(lines)
