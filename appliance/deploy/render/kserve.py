"""A KServe InferenceService in raw deployment mode, with our container as its predictor."""

from typing import Any

from appliance.deploy.render.documents import dump
from appliance.deploy.render.kubernetes import cache_claim, needs_of_pods
from appliance.deploy.render.pod import labels, pod_spec, spec_map
from appliance.deploy.render.workload import ServerWorkload


def render(workload: ServerWorkload) -> dict[str, str]:
    objects = [spec_map(workload), cache_claim(workload), _service(workload)]
    return {f"{workload.name}.yaml": dump(objects, "\n".join(needs_of_pods(workload)))}


def _service(workload: ServerWorkload) -> dict[str, Any]:
    options = workload.options
    pod = pod_spec(workload)
    pod["containers"][0]["name"] = "kserve-container"  # the name by which KServe knows the predictor
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": workload.name,
            "labels": labels(workload),
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {
            "predictor": {
                "minReplicas": options.replicas,
                "maxReplicas": options.max_replicas or options.replicas,
                **pod,
            }
        },
    }
