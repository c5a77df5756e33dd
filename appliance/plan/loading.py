"""Pass `loading`: where packed weights are kept, and what tells one checkpoint from another."""

from appliance.plan.inputs import PlanInputs
from appliance.plan.types import LoadingPlan


def plan_loading(inputs: PlanInputs) -> LoadingPlan:
    loading = inputs.spec.loading
    return LoadingPlan(
        keep_packed=loading.keep_packed and inputs.model.format != "dummy",  # random weights are made anew
        packed_dir=inputs.files.packed_dir,
        packed_max_bytes=int(loading.packed_size),
        packed_access=loading.packed_access,
        checkpoint_sha256=inputs.spec.model.sha256,
    )
