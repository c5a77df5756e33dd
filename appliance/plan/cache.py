"""Parts of pass `memory`: the block size, from the kernels that read the blocks, and what is done with the blocks."""

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.memory import PlannedMemory
from appliance.plan.types import CachePlan, HashAlgorithm, PoolingPlan

AUTO_PREFAULT_BYTES = 256 << 20


def plan_block_size(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> int:
    wanted, path = inputs.spec.cache.block_size, "cache.block_size"
    preferred = inputs.profile.defaults.block_size
    if wanted == AUTO:
        size = preferred if preferred in kernels.block_sizes else kernels.default_block_size
        return ledger.decide(path, size, "profile", f"default of profile {inputs.profile.name}")
    if wanted in kernels.block_sizes:
        return ledger.take(path, path, int(wanted))
    message = f"{kernels.name} has no blocks of {wanted} tokens"
    if not ledger.may_degrade("block_size", f"{message}; blocks of {kernels.default_block_size} are planned"):
        allowed = ", ".join(map(str, kernels.block_sizes))
        ledger.refuse(path, "plan/block-size", message, allowed=f"auto, {allowed}", hint="write auto")
    return kernels.default_block_size


def plan_cache(
    inputs: PlanInputs, block_size: int, memory: PlannedMemory, pooling: PoolingPlan | None, ledger: Ledger
) -> CachePlan:
    return CachePlan(
        block_size=block_size,
        num_blocks=memory.num_blocks,
        prefault_blocks=_prefault_blocks(inputs, memory, ledger),
        prefix_caching=_prefix_caching(inputs, memory, pooling, ledger),
        hash_algorithm=_hash_algorithm(inputs),
        num_snapshots=memory.num_snapshots,
        swap=memory.swap,
    )


def _prefix_caching(inputs: PlanInputs, memory: PlannedMemory, pooling: PoolingPlan | None, ledger: Ledger) -> bool:
    path, wanted = "cache.prefix_caching", inputs.spec.cache.prefix_caching
    if pooling is not None and pooling.runs_whole:
        why = "all tokens of a prompt are computed, as all are pooled or nothing of them is kept"
        if wanted and ledger.source_of(path) != "default":
            ledger.refuse(path, "plan/whole-prompts", why, allowed="false", hint=f"remove {path}")
        return ledger.decide(path, False, "model", why)
    if wanted and memory.num_snapshots == 0:
        return ledger.decide(path, False, "computed", "a prefix of this model needs its states, and none are kept")
    return ledger.take(path, path, wanted)


def _prefault_blocks(inputs: PlanInputs, memory: PlannedMemory, ledger: Ledger) -> int:
    """Blocks that an idle engine makes resident ahead of their use."""
    wanted, path = inputs.spec.cache.prefault, "cache.prefault_blocks"
    block_bytes = memory.memory[0].kv_bytes_per_block
    if not block_bytes:
        return ledger.decide(path, 0, "model", "the model has no cache of keys and values")
    if wanted != AUTO:
        return ledger.take(path, "cache.prefault", min(memory.num_blocks, -(-int(wanted) // block_bytes)))
    if inputs.profile.device != "cpu":
        return ledger.decide(path, 0, "computed", "the cache is resident from the start")
    blocks = min(memory.num_blocks, AUTO_PREFAULT_BYTES // block_bytes)
    return ledger.decide(path, blocks, "computed", f"{format_size(AUTO_PREFAULT_BYTES)}, within the cache")


def _hash_algorithm(inputs: PlanInputs) -> HashAlgorithm:
    """Other algorithms were refused as not built."""
    wanted = inputs.spec.cache.hash_algorithm
    return wanted if wanted == "builtin" or wanted == "sha256_cbor" else "sha256"
