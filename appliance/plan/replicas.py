"""How many replicas a server has, and which of the deployment's they are."""

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.spec.rank_counts import replicas_here

RULE = "plan/replicas"


def plan_replicas(inputs: PlanInputs, ledger: Ledger) -> tuple[int, int]:
    """Returns how many replicas the server has, and the number of the first one. Refuses what would leave replicas that
    nobody sends requests to."""
    spec = inputs.spec.parallelism
    here, first = replicas_here(spec), spec.data_parallel_rank or spec.data_parallel_start_rank or 0
    _check_balancing(inputs, ledger)
    _check_api_processes(inputs, ledger)
    if here == spec.data:
        return here, first
    why = f"of {spec.data} in all; a balancer before the servers spreads requests over them"
    ledger.decide("parallel.replicas", here, "computed", why)
    return here, ledger.decide("parallel.first_replica", first, "computed", "the number of this server's first replica")


def _check_balancing(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.parallelism
    if spec.data_parallel_rank is not None:
        for name in ("data_parallel_hybrid_lb", "data_parallel_start_rank", "data_parallel_size_local"):
            if getattr(spec, name) not in (None, False):
                message = f"with data_parallel_rank a server has one replica, and {name} is for several"
                ledger.refuse(f"parallelism.{name}", RULE, message, hint=f"remove {name}, or data_parallel_rank")
        return
    if spec.data_parallel_hybrid_lb:
        last = (spec.data_parallel_start_rank or 0) + replicas_here(spec)
        if last > spec.data:
            message = f"the replicas here would be numbered up to {last - 1}, and there are {spec.data} from 0 on"
            hint = "write data_parallel_size_local: the number of replicas of this machine"
            ledger.refuse("parallelism.data_parallel_start_rank", RULE, message, hint=hint)
        return
    hint = "write data_parallel_hybrid_lb: true on each machine, and put a balancer before them"
    if replicas_here(spec) < spec.data:
        message = f"{replicas_here(spec)} replicas are here, and one service does not reach those of other machines"
        ledger.refuse("parallelism.data_parallel_size_local", RULE, message, allowed=str(spec.data), hint=hint)
    if spec.data_parallel_start_rank is not None:
        message = "replicas of several machines need a balancer before them"
        ledger.refuse("parallelism.data_parallel_start_rank", RULE, message, hint=hint)


def _check_api_processes(inputs: PlanInputs, ledger: Ledger) -> None:
    count = inputs.spec.endpoints.http.api_server_count
    if replicas_here(inputs.spec.parallelism) > 1 and count > 1:
        message = f"{count} API processes before several replicas are not in this version: one chooses the replica"
        ledger.refuse("endpoints.http.api_server_count", RULE, message, allowed="1", hint="write api_server_count: 1")
