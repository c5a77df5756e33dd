"""Pass `loading`: where packed weights are kept, what tells one checkpoint from another, and who loads at once."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.loader_options import plan_reader
from appliance.plan.loading_types import LoadingPlan
from appliance.plan.parallel_types import ParallelPlan


def plan_loading(inputs: PlanInputs, kernels: KernelSetFacts, parallel: ParallelPlan, ledger: Ledger) -> LoadingPlan:
    loading = inputs.spec.loading
    return LoadingPlan(
        keep_packed=_keep_packed(inputs, ledger),
        packed_dir=inputs.files.packed_dir,
        packed_max_bytes=int(loading.packed_size),
        packed_access=loading.packed_access,
        stream=plan_reader(inputs, is_ours=kernels.runs == "programs", ledger=ledger),
        max_loading_ranks=_max_loading(inputs, kernels, parallel, ledger),
        checkpoint_sha256=inputs.spec.model.sha256,
    )


def _max_loading(inputs: PlanInputs, kernels: KernelSetFacts, parallel: ParallelPlan, ledger: Ledger) -> int | None:
    """Ranks that share no memory find one another while they load, so that none can wait for another to end it."""
    wanted, path = inputs.spec.loading.max_parallel_loading_workers, "loading.max_parallel_loading_workers"
    if wanted is None:
        return None
    if parallel.num_ranks == 1:
        return ledger.take("loading.max_loading_ranks", path, wanted, "it changes nothing: there is one rank")
    if kernels.links_ranks:
        message = f"the ranks of {kernels.name} find one another while they load, so all load at once"
        ledger.refuse(path, "plan/loading", message, hint=f"remove {path}")
        return None
    return ledger.take("loading.max_loading_ranks", path, wanted, f"{min(wanted, parallel.num_ranks)} of "
                       f"{parallel.num_ranks} ranks load at once")  # fmt: skip


def _keep_packed(inputs: PlanInputs, ledger: Ledger) -> bool:
    if not inputs.spec.loading.keep_packed or inputs.model.format == "dummy":  # random weights are made anew
        return False
    if inputs.model.is_encrypted:
        reason = "the checkpoint is encrypted, and what is kept would lie on the disk for anybody to read"
        if ledger.loaded.is_set("loading.keep_packed"):
            ledger.refuse("loading.keep_packed", "plan/loading", reason, hint="remove loading.keep_packed")
        return ledger.decide("loading.keep_packed", False, "computed", reason)
    if inputs.model.format == "custom":
        reason = "a loader of your own reads the model, and nothing tells whether what it reads has changed"
        return ledger.decide("loading.keep_packed", False, "computed", reason)
    if inputs.spec.parallelism.enable_eplb:
        reason = "experts move (parallelism.enable_eplb), so what a rank has packed does not stay as it was kept"
        return ledger.decide("loading.keep_packed", False, "computed", reason)
    return True
