"""Part of pass `kernels`: the CPUs to which the threads of each rank are bound, and the memory that is near to them."""

from typing import NamedTuple

from appliance.hardware.probe.files import parse_cpu_list
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger

PATH, SPEC_PATH, RULE = "kernels.cpus", "hardware.cpu_omp_threads_bind", "plan/binding"


class BoundRanks(NamedTuple):
    """By rank, replica after replica, the CPUs of its threads and the NUMA nodes of these; without any, the system
    places threads."""

    cpus: tuple[tuple[int, ...], ...] = ()
    nodes: tuple[tuple[int, ...], ...] = ()


def plan_binding(inputs: PlanInputs, kernel_set: str, num_ranks: int, ledger: Ledger) -> BoundRanks:
    """Plans it for the ranks of all replicas of this machine."""
    wanted = inputs.spec.hardware.cpu_omp_threads_bind
    if wanted == "all":
        ledger.take(PATH, SPEC_PATH, None)
        return BoundRanks()
    if wanted == AUTO:
        return _by_node(inputs, kernel_set, num_ranks, ledger)
    if not kernel_set.startswith("cpu-"):
        message = f"the kernel set {kernel_set} binds no threads"
        ledger.refuse(SPEC_PATH, RULE, message, allowed="auto, all", hint="write auto")
        return BoundRanks()
    cpus = _listed(wanted, num_ranks)
    away = sorted({cpu for each in cpus for cpu in each} - set(inputs.facts.cpu.affinity))
    if away:
        others = f" and {len(away) - 8} others" if len(away) > 8 else ""
        message = f"this process may not run on CPU {', '.join(map(str, away[:8]))}{others}"
        allowed = ", ".join(map(str, inputs.facts.cpu.affinity))
        ledger.refuse(SPEC_PATH, RULE, message, allowed=allowed, hint="bind other CPUs, or write auto")
        return BoundRanks()
    return BoundRanks(ledger.take(PATH, SPEC_PATH, cpus), _nodes_of(inputs, cpus))


def _listed(text: str, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Returns the list of each rank; a single one is divided among them."""
    lists = tuple(parse_cpu_list(part) for part in text.replace("/", "|").split("|"))
    if len(lists) == num_ranks:
        return lists
    each = len(lists[0]) // num_ranks
    return tuple(lists[0][rank * each : (rank + 1) * each] for rank in range(num_ranks))


def _by_node(inputs: PlanInputs, kernel_set: str, num_ranks: int, ledger: Ledger) -> BoundRanks:
    """Gives each of several ranks a node, or a part of one, or several whole ones."""
    nodes, is_native = inputs.facts.cpu.numa_nodes, kernel_set.startswith("cpu-")
    if num_ranks == 1 or len(nodes) < 2 or not is_native:
        return BoundRanks()
    if num_ranks % len(nodes) and len(nodes) % num_ranks:
        reason = f"{num_ranks} ranks cannot share {len(nodes)} NUMA nodes evenly, so the system places threads"
        ledger.decide(PATH, None, "hardware", reason)
        return BoundRanks()
    sharing, having = max(1, num_ranks // len(nodes)), max(1, len(nodes) // num_ranks)
    cpus: list[tuple[int, ...]] = []
    for rank in range(num_ranks):
        first = rank * len(nodes) // num_ranks
        own = [cpu for node in nodes[first : first + having] for cpu in node.cpus]
        each = len(own) // sharing
        cpus.append(tuple(own[rank % sharing * each :][:each]))
    reason = f"{num_ranks} ranks on {len(nodes)} NUMA nodes: each is where its memory is"
    return BoundRanks(ledger.decide(PATH, tuple(cpus), "hardware", reason), _nodes_of(inputs, tuple(cpus)))


def _nodes_of(inputs: PlanInputs, cpus: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the nodes of each rank's CPUs; nothing where the machine has one, or tells of none."""
    nodes = inputs.facts.cpu.numa_nodes
    if len(nodes) < 2:
        return ()
    return tuple(tuple(node.number for node in nodes if set(node.cpus) & set(own)) for own in cpus)
