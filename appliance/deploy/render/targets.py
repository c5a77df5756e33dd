"""The table of targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.deploy.render import (
    alerts,
    compose,
    grafana,
    helm,
    kserve,
    kubernetes,
    leader_worker_set,
    ray_serve,
    systemd,
)
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
    spans_machines: bool = False  # it can express a server whose ranks are on several machines, or says nothing of it
    service_suffix: str | None = None  # what a cluster appends to the name for a Service; None where none is made


TARGETS: dict[str, RenderTarget] = {
    "systemd": RenderTarget(systemd.render, in_container=False),
    "compose": RenderTarget(compose.render, in_container=True),
    "kubernetes": RenderTarget(kubernetes.render, in_container=True, service_suffix=""),
    "leaderworkerset": RenderTarget(
        leader_worker_set.render, in_container=True, service_suffix="-http", spans_machines=True
    ),
    "helm": RenderTarget(helm.render, in_container=True, service_suffix=""),
    "kserve": RenderTarget(kserve.render, in_container=True, service_suffix=KSERVE_SUFFIX),
    "ray-serve": RenderTarget(ray_serve.render, in_container=False, spans_machines=True),
    "grafana": RenderTarget(grafana.render, in_container=False, spans_machines=True),
    "alerts": RenderTarget(alerts.render, in_container=False, spans_machines=True),
}


def render_target(name: str, prepared: Prepared, overrides: Sequence[str], options: RenderOptions) -> dict[str, str]:
    """File names and texts. Raises RenderError when the target is not known or cannot express the deployment."""
    target = TARGETS.get(name)
    if target is None:
        raise RenderError(f"no target named {name!r}", hint=f"known: {', '.join(TARGETS)}")
    if prepared.plan.parallel.nnodes > 1 and not target.spans_machines:
        raise RenderError(
            f"--to {name} has a server on one machine, and parallelism.nnodes is {prepared.plan.parallel.nnodes}",
            hint="render --to leaderworkerset, or --to ray-serve with parallelism.backend: ray",
        )
    if target.in_container:
        refuse_what_no_container_has(prepared)
    if target.service_suffix is not None:
        refuse_what_no_service_is_called(prepared, target.service_suffix)
    return target.render(workload_of(prepared, overrides, options))
