"""Pass `parallel`: how the model is spread, and whether its shape allows that."""

from appliance.catalog.kernel_sets import DeviceKind
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.types import ParallelPlan

RULE = "plan/parallelism"


def plan_parallel(inputs: PlanInputs, ledger: Ledger) -> ParallelPlan:
    spec = inputs.spec.parallelism
    _check_tensor(inputs, ledger)
    _check_pipeline(inputs, ledger)
    _check_devices(inputs, ledger)
    return ParallelPlan(
        tensor=ledger.take("parallel.tensor", "parallelism.tensor", spec.tensor),
        pipeline=ledger.take("parallel.pipeline", "parallelism.pipeline", spec.pipeline),
        data=ledger.take("parallel.data", "parallelism.data", spec.data),
        expert=spec.expert,
    )


def _check_tensor(inputs: PlanInputs, ledger: Ledger) -> None:
    ranks, geometry = inputs.spec.parallelism.tensor, inputs.model.geometry
    wholes = {
        "attention heads": geometry.num_heads,
        "intermediate size": geometry.intermediate_size,
    }
    broken = [f"{size:,} {name}" for name, size in wholes.items() if size % ranks]
    if geometry.num_kv_heads % ranks and ranks % geometry.num_kv_heads:
        broken.append(f"{geometry.num_kv_heads} KV heads")
    if broken:
        message = f"{ranks} tensor ranks cannot share {', '.join(broken)} evenly"
        possible = [n for n in range(1, geometry.num_heads + 1) if _divides(n, inputs)]
        ledger.refuse(
            "parallelism.tensor", RULE, message, allowed=", ".join(map(str, possible)), hint="write a divisor of both"
        )


def _divides(ranks: int, inputs: PlanInputs) -> bool:
    geometry = inputs.model.geometry
    shares_kv = geometry.num_kv_heads % ranks == 0 or ranks % geometry.num_kv_heads == 0
    return geometry.num_heads % ranks == 0 and geometry.intermediate_size % ranks == 0 and shares_kv


def _check_pipeline(inputs: PlanInputs, ledger: Ledger) -> None:
    stages, layers = inputs.spec.parallelism.pipeline, inputs.model.geometry.num_layers
    if stages > layers:
        message = f"{stages} pipeline stages cannot share {layers} layers"
        ledger.refuse("parallelism.pipeline", RULE, message, allowed=f"1 to {layers}", hint=f"at most {layers}")


def _check_devices(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.parallelism
    wanted, device = spec.tensor * spec.pipeline * spec.data, inputs.profile.device
    there = num_devices(inputs)
    if wanted > there:
        kind = "memory domains" if device == "cpu" else "accelerators"
        message = f"{wanted} ranks need {wanted} devices, and {inputs.facts.name} has {there} ({kind})"
        path = next((name for name in ("tensor", "pipeline", "data") if getattr(spec, name) > 1), "tensor")
        ledger.refuse(f"parallelism.{path}", RULE, message, hint=f"tensor x pipeline x data of at most {there}")


def num_devices(inputs: PlanInputs) -> int:
    """Devices that could each hold a rank. A CPU has one a NUMA node."""
    device: DeviceKind = inputs.profile.device
    return max(1, inputs.facts.cpu.num_numa_nodes) if device == "cpu" else len(inputs.facts.accelerators)
