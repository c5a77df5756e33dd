"""Pass `parallel`: how the model is spread, and whether its shape allows that."""

from typing import Any

from appliance.catalog.kernel_sets import DeviceKind, KernelSetFacts
from appliance.plan.balancer import planned_placing
from appliance.plan.expert_fields import expert_fields
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.plan.replicas import plan_replicas
from appliance.plan.spread_experts import spread_program
from appliance.program.head_cuts import UncutError
from appliance.program.stages import even_layers
from appliance.spec.rank_counts import ranks_here

RULE = "plan/parallelism"


def plan_parallel(inputs: PlanInputs, ledger: Ledger) -> ParallelPlan:
    spec = inputs.spec.parallelism
    _check_pipeline(inputs, ledger)
    _check_devices(inputs, ledger)
    replicas, first_replica = plan_replicas(inputs, ledger)
    return ParallelPlan(
        tensor=ledger.take("parallel.tensor", "parallelism.tensor", spec.tensor),
        pipeline=ledger.take("parallel.pipeline", "parallelism.pipeline", spec.pipeline),
        data=ledger.take("parallel.data", "parallelism.data", spec.data),
        expert=spec.expert,
        **expert_fields(inputs, ledger),
        layers=_layers(inputs, ledger),
        backend=_backend(inputs, ledger),
        distributed_timeout_s=float(spec.distributed_timeout),
        worker_extension_cls=spec.worker_extension_cls
        and ledger.take("parallel.worker_extension_cls", "parallelism.worker_extension_cls", spec.worker_extension_cls),
        replicas=replicas,
        first_replica=first_replica,
        **_nodes(inputs, ledger),
    )


def check_collectives(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> None:
    """Says who exchanges what ranks need of each other, and refuses to ask for a library where none does."""
    path, hint = "parallelism.disable_custom_all_reduce", "write disable_custom_all_reduce: false"
    if not inputs.spec.parallelism.disable_custom_all_reduce:
        return
    if kernels.uses_torch:
        ledger.take("parallel.collectives", path, "library", "ranks exchange by the library alone, whatever is written")
    else:
        message = f"ranks of {kernels.name} exchange through memory that they share, and there is no vendor's library"
        ledger.refuse(path, RULE, message, allowed="false", hint=hint)


def _layers(inputs: PlanInputs, ledger: Ledger) -> tuple[int, ...]:
    """Returns how many layers each stage has; nothing without stages."""
    spec, num_layers = inputs.spec.parallelism, inputs.model.geometry.num_layers
    stages, path = spec.pipeline, "parallelism.layer_partition"
    if spec.layer_partition and sum(spec.layer_partition) != num_layers:
        message = f"the stages have {sum(spec.layer_partition)} layers together, and the model has {num_layers}"
        ledger.refuse(path, RULE, message, hint=f"give numbers that add up to {num_layers}, or leave the list out")
    if stages == 1 or stages > num_layers:
        return ()
    if inputs.spec.speculative is not None:
        ledger.decide("parallel.steps_at_once", 1, "computed", "drafts need what the last step gave")
    else:
        ledger.decide("parallel.steps_at_once", stages, "computed", "one in each stage")
    if spec.layer_partition:
        return ledger.take("parallel.layers", path, tuple(spec.layer_partition))
    return ledger.decide("parallel.layers", even_layers(num_layers, stages), "computed", "as even as layers allow")


def _nodes(inputs: PlanInputs, ledger: Ledger) -> dict[str, Any]:
    """Returns what the plan says of several machines."""
    spec = inputs.spec.parallelism
    wanted = {"master_addr": spec.master_addr or "", "master_port": spec.master_port, "join_timeout": spec.join_timeout}
    if spec.nnodes == 1:
        for name, value in wanted.items():
            if ledger.source_of(f"parallelism.{name}") != "default":
                reason = f"parallelism.{name} changes nothing: parallelism.nnodes is 1"
                ledger.decide(f"parallel.{name}", value, "computed", reason)
        return {}
    _check_nodes(inputs, ledger)
    return {
        "nnodes": ledger.take("parallel.nnodes", "parallelism.nnodes", spec.nnodes),
        "master_addr": ledger.take("parallel.master_addr", "parallelism.master_addr", wanted["master_addr"]),
        "master_port": ledger.take("parallel.master_port", "parallelism.master_port", spec.master_port),
        "join_timeout_s": ledger.take("parallel.join_timeout_s", "parallelism.join_timeout", float(spec.join_timeout)),
    }


def _check_nodes(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.parallelism
    ranks = spec.tensor * spec.pipeline
    if ranks % spec.nnodes:
        possible = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        message = f"{ranks} ranks cannot be shared evenly by {spec.nnodes} machines"
        ledger.refuse(
            "parallelism.nnodes", RULE, message, allowed=possible, hint="write as many ranks for each machine"
        )
    if spec.master_addr is None and spec.backend != "ray":  # who knows the address of its node
        message = "ranks of several machines need the address of the first one"
        ledger.refuse("parallelism.nnodes", RULE, message, hint="write parallelism.master_addr")
    elif spec.master_addr in ("0.0.0.0", "::"):
        message = f"{spec.master_addr} stands for every address of a machine, and others reach one"
        ledger.refuse("parallelism.master_addr", RULE, message, hint="write the address of the first machine")
    if spec.data > 1:
        message = "replicas whose ranks are on several machines are not in this version"
        ledger.refuse("parallelism.nnodes", RULE, message, allowed="1", hint="write data: 1, or nnodes: 1")


def _backend(inputs: PlanInputs, ledger: Ledger) -> str:
    spec = inputs.spec.parallelism
    if spec.backend == "ray" and spec.nnodes == 1:
        message = "Ray places the ranks of other nodes, and parallelism.nnodes is 1"
        ledger.refuse("parallelism.backend", RULE, message, allowed="auto, mp", hint="write nnodes: 2, or more")
    if spec.backend != "auto":
        return ledger.take("parallel.backend", "parallelism.backend", spec.backend)
    ranks = spec.tensor * spec.pipeline
    backend, reason = ("uni", "one rank") if ranks == 1 else ("mp", "a process for each rank of this machine")
    return ledger.decide("parallel.backend", backend, "computed", reason)


def share_program(program: PlannedProgram, parallel: ParallelPlan, ledger: Ledger) -> PlannedProgram:
    """Returns what the first rank has of a program. Refuses more ranks than its heads and columns allow, and kernel
    sets that run one."""
    ranks, kernels, whole = parallel.tensor, program.kernels, sum(program.sizes.values())
    program = spread_program(program, parallel, ledger)
    if parallel.num_ranks == 1:
        return program
    if not kernels.can_share:
        path = "parallelism.tensor" if ranks > 1 else "parallelism.pipeline"
        message = f"the kernel set {kernels.name} runs one rank in this version, and {parallel.num_ranks} are asked for"
        ledger.refuse(path, RULE, message, allowed="1", hint=f"write {path.partition('.')[2]}: 1")
    if parallel.nnodes > 1 and not kernels.links_ranks:
        message = f"the ranks of {kernels.name} share the memory of one machine, and parallelism.nnodes is"
        hint = "write nnodes: 1, or a kernel set on torch: hardware.kernels.kernel_set: torch"
        ledger.refuse("parallelism.nnodes", RULE, f"{message} {parallel.nnodes}", allowed="1", hint=hint)
    program = _with_stages(program, parallel, ledger)
    if ranks == 1:
        return program
    try:
        shared = program.share(ranks, planned_placing(program, parallel, ledger))
    except UncutError as error:
        possible = [n for n in range(1, ranks) if _can_share(program, n)]
        message = f"{ranks} tensor ranks cannot share this model: {error}"
        ledger.refuse(
            "parallelism.tensor", RULE, message, allowed=", ".join(map(str, possible)), hint=f"write {possible[-1]}"
        )
        return program
    own = sum(shared.sizes.values())
    ties = "" if kernels.is_batch_invariant else " but for near ties"
    reason = (
        f"each computes its rows and heads whole, so tokens are those of one rank{ties};"
        f" {own / whole:.0%} of the weights"
    )
    ledger.decide("parallel.share", round(own / whole, 3), "computed", reason)
    return shared


def _with_stages(program: PlannedProgram, parallel: ParallelPlan, ledger: Ledger) -> PlannedProgram:
    """Returns the program, and what each of its stages has. Refuses stages whose layers need those of another."""
    try:
        return program.in_stages(parallel.layers)
    except UncutError as error:
        message = f"this model cannot be cut into {parallel.pipeline} stages: {error}"
        hint = "give other numbers of layers in parallelism.layer_partition, or write pipeline: 1"
        ledger.refuse("parallelism.pipeline", RULE, message, hint=hint)
        return program


def _can_share(program: PlannedProgram, ranks: int) -> bool:
    try:
        program.share(ranks)
    except UncutError:
        return False
    return True


def _check_pipeline(inputs: PlanInputs, ledger: Ledger) -> None:
    stages, layers = inputs.spec.parallelism.pipeline, inputs.model.geometry.num_layers
    if stages > layers:
        message = f"{stages} pipeline stages cannot share {layers} layers"
        ledger.refuse("parallelism.pipeline", RULE, message, allowed=f"1 to {layers}", hint=f"at most {layers}")


def _check_devices(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.parallelism
    wanted, device = ranks_here(spec), inputs.profile.device
    there = num_devices(inputs)
    if wanted > there:
        kind = "cores that it may use" if device == "cpu" else "accelerators"
        message = f"{wanted} ranks need {wanted} devices, and {inputs.facts.name} has {there} ({kind})"
        path = next((name for name in ("tensor", "pipeline", "data") if getattr(spec, name) > 1), "tensor")
        ledger.refuse(f"parallelism.{path}", RULE, message, hint=f"tensor x pipeline x data of at most {there}")


def num_devices(inputs: PlanInputs) -> int:
    """Returns how many devices could each hold a rank. A CPU has one a core."""
    device: DeviceKind = inputs.profile.device
    return max(1, inputs.facts.cpu.num_cores) if device == "cpu" else len(inputs.facts.accelerators)


def threads_of_rank(inputs: PlanInputs) -> int:
    """Returns the cores of a machine's CPU that each rank of each replica on it has."""
    spec = inputs.spec.parallelism
    ranks = ranks_here(spec) if inputs.profile.device == "cpu" else 1
    return max(1, inputs.facts.cpu.num_cores // ranks)
