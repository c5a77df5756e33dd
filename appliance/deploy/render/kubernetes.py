"""Kubernetes objects: spec, cache claim, Deployment, Service, disruption budget, and an autoscaler where asked for."""

from typing import Any, Final

from appliance.deploy.render.documents import dump
from appliance.deploy.render.names import pods_of
from appliance.deploy.render.pod import KEY_NAME, key_secret, labels, pod_spec, spec_map
from appliance.deploy.render.workload import ServerWorkload

QUEUE_METRIC: Final = "appliance_requests_waiting"
QUEUE_PER_REPLICA: Final = 1  # a replica that lets requests wait is full
CACHE_SLACK: Final = 4  # a checkpoint, what is made of it, and the next one beside it
GIB: Final = 1 << 30


def render(workload: ServerWorkload) -> dict[str, str]:
    return {f"{workload.name}.yaml": dump(objects(workload), needs(workload))}


def objects(workload: ServerWorkload) -> list[dict[str, Any]]:
    found = [spec_map(workload), cache_claim(workload), _deployment(workload), _service(workload)]
    if workload.options.replicas > 1:
        found.append(_disruption_budget(workload))
    if workload.options.max_replicas is not None:
        found.append(_autoscaler(workload))
    return found


def cache_claim(workload: ServerWorkload) -> dict[str, Any]:
    size = max(1, CACHE_SLACK * workload.checkpoint_bytes // GIB)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{workload.name}-cache", "labels": labels(workload)},
        "spec": {"accessModes": [_access(workload)], "resources": {"requests": {"storage": f"{size}Gi"}}},
    }


def _access(workload: ServerWorkload) -> str:
    options = workload.options
    several = options.replicas > 1 or options.max_replicas is not None or workload.num_machines > 1
    return "ReadWriteMany" if several else "ReadWriteOnce"


def _deployment(workload: ServerWorkload) -> dict[str, Any]:
    autoscaled = workload.options.max_replicas is not None
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {
            **({} if autoscaled else {"replicas": workload.options.replicas}),
            "selector": {"matchLabels": labels(workload)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "progressDeadlineSeconds": workload.start_timeout_s + workload.stop_s,
            "template": {
                "metadata": {"labels": labels(workload), "annotations": scraping(workload)},
                "spec": pod_spec(workload),
            },
        },
    }


def scraping(workload: ServerWorkload) -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(workload.port),
    }


def _service(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {"selector": labels(workload), "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _disruption_budget(workload: ServerWorkload) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels(workload)}},
    }


def _autoscaler(workload: ServerWorkload) -> dict[str, Any]:
    return _keda(workload) if workload.options.prometheus_url else _hpa(workload)


def _hpa(workload: ServerWorkload) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": str(QUEUE_PER_REPLICA)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {
            "scaleTargetRef": _target(workload),
            "minReplicas": workload.options.replicas,
            "maxReplicas": workload.options.max_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": QUEUE_METRIC}, "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": workload.start_timeout_s}},
        },
    }


def _keda(workload: ServerWorkload) -> dict[str, Any]:
    trigger = {
        "serverAddress": workload.options.prometheus_url,
        "query": f'sum({QUEUE_METRIC}{{pod=~"{pods_of(workload.name)}"}})',
        "threshold": str(QUEUE_PER_REPLICA),
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": workload.name, "labels": labels(workload)},
        "spec": {
            "scaleTargetRef": _target(workload),
            "minReplicaCount": workload.options.replicas,
            "maxReplicaCount": workload.options.max_replicas,
            "cooldownPeriod": workload.start_timeout_s,
            "triggers": [{"type": "prometheus", "metadata": trigger}],
        },
    }


def _target(workload: ServerWorkload) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name}


def needs(workload: ServerWorkload) -> str:
    """What the cluster must have beside these objects."""
    lines = needs_of_pods(workload)
    if workload.options.max_replicas is not None and workload.options.prometheus_url is None:
        lines.append(f"Needs an adapter that offers {QUEUE_METRIC} as a metric of pods")
    return "\n".join(lines)


def needs_of_pods(workload: ServerWorkload) -> list[str]:
    """What pods ask the cluster for, a line each."""
    lines = []
    if workload.variables:
        lines.append(f"Needs a Secret {workload.name}-env with: {', '.join(workload.variables)}")
    if workload.key_path is not None:
        lines.append(f"Needs a Secret {key_secret(workload)} with {KEY_NAME}, which opens the weights")
    if workload.model_path is not None:
        lines.append(f"Needs a PersistentVolumeClaim {workload.name}-model that holds {workload.model_path.name}")
    return lines
