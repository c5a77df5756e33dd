"""Pass `parallel`: which ranks have which experts, and whether these can move."""

from appliance.base.units import format_size
from appliance.plan.ledger import Ledger
from appliance.plan.parallel import RULE
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.types import ExpertsPlan

_STRATEGY = "parallelism.expert_placement_strategy"
_ORDERS = {"linear": "neighbours in one", "round_robin": "one after the other over all"}


def check_experts(
    parallel: ParallelPlan, experts: ExpertsPlan | None, ledger: Ledger, *, has_adapters: bool
) -> ExpertsPlan | None:
    """Returns the experts. Refuses to spread or place them where the model has none; else says which each rank, or
    replica, has."""
    path, hint = "parallelism.expert", "write expert: false"
    is_placed = ledger.source_of(_STRATEGY) != "default"
    if experts is None:
        message = "the model has no experts that ranks could share"
        if parallel.expert:
            ledger.refuse(path, RULE, message, hint=hint)
        if is_placed:
            ledger.refuse(_STRATEGY, RULE, message, hint="remove it")
    elif parallel.enable_eplb and has_adapters:
        message = "experts that move do not take along what adapters change of them"
        ledger.refuse("parallelism.enable_eplb", RULE, message, hint="remove lora, or write enable_eplb: false")
    elif parallel.enable_eplb and not parallel.spreads_experts:
        _price_moves(parallel, experts, ledger)
    elif parallel.expert or is_placed:
        among = parallel.tensor * (parallel.data if parallel.spreads_experts else 1)
        each, order = -(-experts.num_experts // among), _ORDERS[parallel.expert_placement_strategy]
        reason = f"whole experts of {experts.num_experts}, {order}"
        ledger.decide("parallel.experts_per_rank", each, "computed", reason)
    return experts


def _price_moves(parallel: ParallelPlan, experts: ExpertsPlan, ledger: Ledger) -> None:
    """Says what copies take, and what a rank reads at most between two steps."""
    places, copies = experts.num_experts + parallel.num_redundant_experts, parallel.num_redundant_experts
    each, count = places // parallel.tensor, experts.num_layers
    reason = f"whole experts of {experts.num_experts} and {copies} copies, which move by their load"
    ledger.decide("parallel.experts_per_rank", each, "computed", reason)
    mixture = experts.size_bytes // max(count, 1)
    taken = experts.size_bytes * copies // places
    reason = f"{format_size(taken)} of the rank's weights are copies, in {count} layers"
    ledger.decide("parallel.redundant_bytes", taken, "computed", reason)
    reason = (
        f"experts move in one layer between two steps, which waits for each rank to read at most {format_size(mixture)}"
    )
    ledger.decide("parallel.move_bytes", mixture, "computed", reason)
