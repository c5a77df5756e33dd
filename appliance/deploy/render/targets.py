"""The table of targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.deploy.render import alerts, compose, grafana, helm, kserve, kubernetes, ray_serve, systemd
from appliance.deploy.render.names import KSERVE_SUFFIX, refuse_what_no_service_is_called
from appliance.deploy.render.workload import (
    RenderError,
    RenderOptions,
    ServerWorkload,
    refuse_what_no_container_has,
    workload_of,
)
from appliance.plan.prepare import Prepared


@dataclass(frozen=True, slots=True)
class RenderTarget:
    render: Callable[[ServerWorkload], dict[str, str]]  # file name -> text
    in_container: bool
    service_suffix: str | None = None  # what a cluster appends to the name for a Service; None where none is made


TARGETS: dict[str, RenderTarget] = {
    "systemd": RenderTarget(systemd.render, in_container=False),
    "compose": RenderTarget(compose.render, in_container=True),
    "kubernetes": RenderTarget(kubernetes.render, in_container=True, service_suffix=""),
    "helm": RenderTarget(helm.render, in_container=True, service_suffix=""),
    "kserve": RenderTarget(kserve.render, in_container=True, service_suffix=KSERVE_SUFFIX),
    "ray-serve": RenderTarget(ray_serve.render, in_container=False),
    "grafana": RenderTarget(grafana.render, in_container=False),
    "alerts": RenderTarget(alerts.render, in_container=False),
}
_ONE_MACHINE = "an engine runs on one machine in this version"
NOT_BUILT = {
    "leaderworkerset": f"it groups pods that share one model, and {_ONE_MACHINE}; --to kubernetes has replicas",
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
    if target.service_suffix is not None:
        refuse_what_no_service_is_called(prepared, target.service_suffix)
    return target.render(workload_of(prepared, overrides, options))
