"""The table of targets."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.deploy.render import alerts, compose, grafana, helm, kserve, kubernetes, systemd
from appliance.deploy.render.workload import (
    RenderError,
    RenderOptions,
    Workload,
    refuse_what_no_container_has,
    workload_of,
)
from appliance.plan.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Target:
    render: Callable[[Workload], dict[str, str]]  # file name -> text
    in_container: bool
    in_cluster: bool = False  # its objects are named after the deployment, by a cluster's rules


TARGETS: dict[str, Target] = {
    "systemd": Target(systemd.render, in_container=False),
    "compose": Target(compose.render, in_container=True),
    "kubernetes": Target(kubernetes.render, in_container=True, in_cluster=True),
    "helm": Target(helm.render, in_container=True, in_cluster=True),
    "kserve": Target(kserve.render, in_container=True, in_cluster=True),
    "grafana": Target(grafana.render, in_container=False),
    "alerts": Target(alerts.render, in_container=False),
}
_ONE_MACHINE = "an engine runs on one machine in this version"
NOT_BUILT = {
    "leaderworkerset": f"it groups pods that share one model, and {_ONE_MACHINE}; --to kubernetes has replicas",
    "ray-serve": f"Ray places actors over machines, and {_ONE_MACHINE}; --to kubernetes has replicas and autoscaling",
}


# A Service's name is a label by RFC 1035, section 2.3.1: it begins with a letter. A spec's name may begin with a digit.
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def _refuse_what_no_service_is_called(name: str) -> None:
    if _SERVICE_NAME.fullmatch(name) is None:
        raise RenderError(
            f"name: {name!r} cannot name a Kubernetes Service: it has to begin with a letter",
            hint=f"--set name=model-{name}",
        )


def render_target(name: str, prepared: Prepared, overrides: Sequence[str], options: RenderOptions) -> dict[str, str]:
    """File names and texts. Raises RenderError when the target is not known or cannot express the deployment."""
    if name in NOT_BUILT:
        raise RenderError(
            f"render --to {name} is not in this version: {NOT_BUILT[name]}", hint=f"built: {', '.join(TARGETS)}"
        )
    target = TARGETS.get(name)
    if target is None:
        raise RenderError(f"no target named {name!r}", hint=f"known: {', '.join(TARGETS)}")
    if target.in_container:
        refuse_what_no_container_has(prepared)
    if target.in_cluster:
        _refuse_what_no_service_is_called(prepared.plan.name)
    return target.render(workload_of(prepared, overrides, options))
