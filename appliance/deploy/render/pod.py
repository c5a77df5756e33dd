"""The pod that Kubernetes and KServe run."""

from typing import Any, Final

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
    num_start_failures,
)
from appliance.deploy.render.workload import ServerWorkload

CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
KEY_NAME: Final = "key"
KEY_MODE: Final = 0o440  # for the group of the pod
PRE_STOP_S: Final = 5  # until every proxy has heard that the pod leaves


def labels(workload: ServerWorkload) -> dict[str, str]:
    return {"app.kubernetes.io/name": "appliance", "app.kubernetes.io/instance": workload.name}


def spec_map(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{workload.name}-spec", "labels": labels(workload)},
        "data": {SPEC_FILE.name: workload.spec_text},
    }


def pod_spec(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": PRE_STOP_S + workload.stop_s,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(workload)],
        "volumes": volumes(workload),
    }


def container(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "name": "appliance",
        "image": workload.options.image,
        "args": arguments(workload),
        "env": [secret(workload, name) for name in workload.variables],
        "ports": [{"name": "http", "containerPort": workload.port}],
        "startupProbe": _probe("/readyz", num_start_failures(workload)),
        "readinessProbe": _probe("/readyz", 1),
        "livenessProbe": _probe("/livez", num_live_failures(workload)),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "resources": resources(workload),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts(workload),
    }


def resources(workload: ServerWorkload) -> dict[str, Any]:
    """Returns what a pod asks for. A limit of CPU would throttle within a step; with accelerators the host's memory is
    planned in parts only, so it has no limit."""
    requests, limits = {"cpu": str(workload.num_cores)}, {}
    if workload.memory_bytes:
        requests["memory"] = str(workload.memory_bytes)
    if workload.num_accelerators:
        limits[workload.accelerator_resource] = str(workload.num_accelerators)
    else:
        limits["memory"] = str(workload.memory_bytes)
    return {"requests": requests, "limits": limits}


def volumes(workload: ServerWorkload) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "spec", "configMap": {"name": f"{workload.name}-spec"}},
        {"name": "state", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{workload.name}-cache"}},
    ]
    if workload.model_path is not None:
        claim = {"claimName": f"{workload.name}-model", "readOnly": True}
        found.append({"name": "model", "persistentVolumeClaim": claim})
    if workload.key_path is not None:
        found.append({"name": "key", "secret": {"secretName": key_secret(workload), "defaultMode": KEY_MODE}})
    return found


def mounts(workload: ServerWorkload) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "spec", "mountPath": str(SPEC_FILE.parent), "readOnly": True},
        {"name": "state", "mountPath": str(STATE_FOLDER)},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": str(CACHE_FOLDER)},
    ]
    if workload.model_path is not None:
        found.append({"name": "model", "mountPath": str(MODEL_FOLDER), "readOnly": True})
    if workload.key_path is not None:
        found.append({"name": "key", "mountPath": str(workload.key_path), "subPath": KEY_NAME, "readOnly": True})
    return found


def key_secret(workload: ServerWorkload) -> str:
    """Returns the name of the Secret that holds what opens an encrypted checkpoint, as KEY_NAME."""
    return f"{workload.name}-weights-key"


def _probe(path: str, num_failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": num_failures,
    }


def secret(workload: ServerWorkload, name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{workload.name}-env", "key": name}}}
