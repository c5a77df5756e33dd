"""What every target needs to know of a deployment, drawn once from its spec and plan."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.base.errors import ApplianceError, ExitCode
from appliance.catalog.kernel_sets import KUBERNETES_RESOURCES
from appliance.checkpoint.sources.address import PathAddress, parse_address
from appliance.checkpoint.tensorizer_key import FIELD, OPTIONS
from appliance.plan.prepare import Prepared
from appliance.plan.serving_types import RestartPlan
from appliance.plan.types import EnginePlan
from appliance.spec.interpolate import referenced_variables

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
STOP_MARGIN_S: Final = 10  # from the last answered request to the last ended process
_FILE_FIELDS: Final = (
    "model.chat_template",
    "endpoints.auth.keys_file",
    "endpoints.tls.keyfile",
    "endpoints.tls.certfile",
    "endpoints.tls.ca_certs",
)
_FILE_REFERENCE: Final = re.compile(r"(?<!\$)\$\{file:([^}]*)\}")


class RenderError(ApplianceError):
    """The target cannot express this deployment."""

    exit_code = ExitCode.INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    image: str = "appliance:cpu"
    replicas: int = 1
    max_replicas: int | None = None  # more than `replicas` asks for autoscaling
    prometheus_url: str | None = None  # where an autoscaler reads the queue
    start_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWorkload:
    """A deployment as a supervisor sees it. Sizes in bytes, times in whole seconds."""

    name: str
    model_name: str  # the label of its metrics
    slo: dict[str, float]  # seconds, by name: "ttft_p95"
    spec_path: Path
    spec_text: str  # as written: references to secrets are not filled in
    overrides: tuple[str, ...]
    variables: tuple[str, ...]  # of the environment, named by the spec
    host: str
    port: int
    model_path: Path | None  # on this machine; None when the appliance fetches it
    key_path: Path | None  # of what opens an encrypted checkpoint, wherever it runs
    num_machines: int  # that have the ranks of one server
    num_ranks: int  # of all engines of a server, on one machine
    is_on_ray: bool  # Ray starts the ranks of other machines
    ranks_port: int  # where the first machine lets the ranks of others join
    num_cores: int  # of one machine, as all below
    num_accelerators: int
    accelerator_resource: str  # by which Kubernetes gives accelerators
    memory_bytes: int  # of the host; 0: nothing is planned there, as all lies on accelerators
    checkpoint_bytes: int  # about: of what a cache keeps
    num_replicas: int  # engines of one server
    max_num_seqs: int  # of one engine
    max_waiting: int | None
    max_body_bytes: int
    asked_apis: tuple[str, ...]  # that the spec lists; none where it leaves the default
    drain_s: int  # how long open requests may finish after SIGTERM
    heartbeat_timeout_s: int
    start_timeout_s: int
    restart: RestartPlan
    options: RenderOptions

    @property
    def stop_s(self) -> int:
        """After this a supervisor may kill."""
        return self.drain_s + STOP_MARGIN_S


def workload_of(prepared: Prepared, overrides: Sequence[str], options: RenderOptions) -> ServerWorkload:
    plan, loaded = prepared.plan, prepared.loaded
    address = parse_address(
        loaded.spec.model.source, Path(loaded.file).parent, has_resolver=loaded.spec.model.resolver is not None
    )
    return ServerWorkload(
        name=plan.name,
        model_name=plan.model.served_names[0],
        slo=plan.slo,
        spec_path=Path(loaded.file).resolve(),
        spec_text=loaded.text,
        overrides=tuple(overrides),
        variables=referenced_variables(loaded.text),
        host=plan.serving.listen.host,
        port=plan.serving.listen.port,
        model_path=address.path.resolve() if isinstance(address, PathAddress) else None,
        key_path=None if plan.model.loader.key is None else Path(plan.model.loader.key.path),
        num_machines=plan.parallel.nnodes,
        num_ranks=_ranks_here(plan),
        is_on_ray=plan.parallel.backend == "ray",
        ranks_port=plan.parallel.master_port,
        num_cores=plan.kernels.num_threads * (_ranks_here(plan) if plan.device == "cpu" else 1),
        num_accelerators=0 if plan.device == "cpu" else _ranks_here(plan),
        accelerator_resource=KUBERNETES_RESOURCES.get(plan.device, ""),
        memory_bytes=_planned_room(plan) if plan.device == "cpu" else _host_bytes(plan),
        checkpoint_bytes=_planned_room(plan),
        num_replicas=plan.parallel.replicas,
        max_num_seqs=plan.scheduler.max_num_seqs,
        max_waiting=plan.scheduler.max_waiting,
        max_body_bytes=plan.serving.limits.max_body_bytes,
        asked_apis=plan.serving.routes.apis if loaded.is_set("endpoints.apis") else (),
        drain_s=math.ceil(plan.serving.shutdown_timeout_s),
        heartbeat_timeout_s=math.ceil(plan.restart.heartbeat_timeout_s),
        start_timeout_s=math.ceil(options.start_timeout_s),
        restart=plan.restart,
        options=options,
    )


def refuse_what_no_container_has(prepared: Prepared) -> None:
    """Raises RenderError when the deployment needs an address or a file that a container would not have."""
    plan, loaded = prepared.plan, prepared.loaded
    if plan.serving.listen.uds is not None:
        raise RenderError(
            "a Unix socket does not leave its container", hint="give endpoints.http.host and port instead"
        )
    if plan.serving.listen.host in LOOPBACK:
        raise RenderError(
            f"endpoints.http.host is {plan.serving.listen.host}, which nothing outside the container reaches",
            hint="add --set endpoints.http.host=0.0.0.0; such an address asks for endpoints.auth.keys",
        )
    key = plan.model.loader.key
    options = loaded.spec.loading.model_loader_extra_config
    if key is not None and not Path(options[OPTIONS[key.holds]]).is_absolute():
        raise RenderError(
            f"{FIELD}.{OPTIONS[key.holds]} is a path of this machine, and a container has the key elsewhere",
            hint="write the path in the container, such as /run/secrets/model.key",
        )
    files = [path for path in _FILE_FIELDS if loaded.is_set(path)]
    files += [f"${{file:{name}}}" for name in _FILE_REFERENCE.findall(loaded.text)]
    if files:
        raise RenderError(
            f"the spec names files that are not carried along: {', '.join(files)}",
            hint="give secrets as ${env:NAME}, and end TLS at the proxy",
        )


def _ranks_here(plan: EnginePlan) -> int:
    """Returns the ranks of all engines of a server that one machine has."""
    return plan.parallel.num_ranks * plan.parallel.replicas // plan.parallel.nnodes


def _planned_room(plan: EnginePlan) -> int:
    """Returns a limit under which planning again gives the same plan: what is planned for each rank, over the share
    that may be used."""
    memory = plan.memory[0]
    planned = sum(item.size_bytes for item in memory.items)
    return math.ceil(_ranks_here(plan) * planned * memory.device_bytes / memory.budget_bytes)


def _host_bytes(plan: EnginePlan) -> int:
    return _ranks_here(plan) * sum(item.size_bytes for item in plan.memory[0].host_items)
