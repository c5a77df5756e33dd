"""The sizes of a bound program's largest step, as the formulas of its memory take them."""

from appliance.kernels.execution import ExecutionLimits
from appliance.program.device_memory import StepLimits


def step_limits(limits: ExecutionLimits) -> StepLimits:
    return StepLimits(
        num_tokens=limits.max_num_batched_tokens,
        num_seqs=limits.max_num_seqs,
        num_sampled=limits.max_num_sampled,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
    )
