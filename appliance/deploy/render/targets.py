"""The table of targets."""

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


TARGETS: dict[str, Target] = {
    "systemd": Target(systemd.render, in_container=False),
    "compose": Target(compose.render, in_container=True),
    "kubernetes": Target(kubernetes.render, in_container=True),
    "helm": Target(helm.render, in_container=True),
    "kserve": Target(kserve.render, in_container=True),
    "grafana": Target(grafana.render, in_container=False),
    "alerts": Target(alerts.render, in_container=False),
}
_ONE_MACHINE = "an engine runs on one machine in this version"
NOT_BUILT = {
    "leaderworkerset": f"it groups pods that share one model, and {_ONE_MACHINE}; --to kubernetes has replicas",
    "ray-serve": f"Ray places actors over machines, and {_ONE_MACHINE}; --to kubernetes has replicas and autoscaling",
}


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
    return target.render(workload_of(prepared, overrides, options))
