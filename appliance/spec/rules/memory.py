"""Rules of `hardware` and `cache`."""

from appliance.base.diagnostics import Severity
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rank_counts import ranks_here
from appliance.spec.rules.finding import Finding, Findings


def kv_cache_is_said_once(spec: DeploymentSpec) -> Findings:
    if spec.hardware.memory.kv_cache != "auto" and spec.cache.num_blocks != "auto":
        yield Finding(
            path="cache.num_blocks",
            value=spec.cache.num_blocks,
            message="cache.num_blocks and hardware.memory.kv_cache both say how large the cache is",
            hint="remove one of the two",
        )


def kv_cache_is_not_empty(spec: DeploymentSpec) -> Findings:
    if spec.hardware.memory.kv_cache == 0:
        yield Finding(
            path="hardware.memory.kv_cache",
            value=0,
            message="an engine without KV cache cannot generate",
            hint="remove it for what is left after the weights, or write a size such as 1GiB",
        )


def block_size_fits_device(spec: DeploymentSpec) -> Findings:
    size, device = spec.cache.block_size, spec.hardware.device
    if device in ("cuda", "rocm") and isinstance(size, int) and size < 16:
        yield Finding(
            path="cache.block_size",
            value=size,
            message=f"{device} kernels take blocks of at least 16 tokens",
            allowed="auto, 16, 32, 64 or 128",
            hint="remove cache.block_size",
        )


def kv_dtype_fits_device(spec: DeploymentSpec) -> Findings:
    dtype, device = spec.cache.dtype, spec.hardware.device
    if dtype == "fp8_inc" and device != "auto":
        yield Finding(
            path="cache.dtype",
            value=dtype,
            message=f"fp8_inc is for Gaudi, not for {device}",
            hint="write cache.dtype: fp8",
        )


def hash_needs_prefix_caching(spec: DeploymentSpec) -> Findings:
    if not spec.cache.prefix_caching and "hash_algorithm" in spec.cache.model_fields_set:
        yield Finding(
            path="cache.hash_algorithm",
            value=spec.cache.hash_algorithm,
            message="cache.hash_algorithm has no use with prefix_caching: false",
            hint="remove cache.hash_algorithm",
            severity=Severity.WARNING,
        )


def swap_needs_space(spec: DeploymentSpec) -> Findings:
    if spec.scheduler.preemption_mode == "swap" and spec.hardware.memory.swap_space == 0:
        yield Finding(
            path="scheduler.preemption_mode",
            value="swap",
            message="preemption by swap needs memory to swap to",
            hint="write hardware.memory.swap_space: 4GiB, or preemption_mode: recompute",
        )


def swap_space_is_used(spec: DeploymentSpec) -> Findings:
    if spec.scheduler.preemption_mode == "recompute" and spec.hardware.memory.swap_space:
        yield Finding(
            path="hardware.memory.swap_space",
            value=spec.hardware.memory.swap_space,
            message="hardware.memory.swap_space has no use with preemption_mode: recompute",
            hint="remove hardware.memory.swap_space, or write preemption_mode: swap",
            severity=Severity.WARNING,
        )


def offload_needs_a_device(spec: DeploymentSpec) -> Findings:
    if spec.hardware.device == "cpu" and spec.hardware.memory.cpu_offload > 0:
        yield Finding(
            path="hardware.memory.cpu_offload",
            value=spec.hardware.memory.cpu_offload,
            message="on a CPU, weights are in host memory already",
            hint="remove hardware.memory.cpu_offload",
        )


def eager_has_no_graphs(spec: DeploymentSpec) -> Findings:
    if not spec.compilation.enforce_eager:
        return
    for name, without in (
        ("cuda_graph_sizes", ([],)),
        ("cudagraph_capture_sizes", ([],)),
        ("max_cudagraph_capture_size", ("auto",)),
        ("cudagraph_mode", ("auto", "NONE")),
    ):
        if getattr(spec.compilation, name) not in without:
            yield Finding(
                path=f"compilation.{name}",
                message=f"compilation.{name} has no use with enforce_eager: true",
                hint=f"remove compilation.{name}, or enforce_eager",
            )


def binding_fits_threads(spec: DeploymentSpec) -> Findings:
    binding, threads = spec.hardware.cpu_omp_threads_bind, spec.hardware.num_threads
    if binding in ("auto", "all"):
        return
    ranks = [_cpus(part) for part in binding.replace("/", "|").split("|")]
    path = "hardware.cpu_omp_threads_bind"
    num_ranks = ranks_here(spec.parallelism)
    if len(ranks) not in (1, num_ranks):
        yield Finding(
            path=path,
            value=binding,
            message=f"{len(ranks)} CPU lists for {num_ranks} ranks",
            hint="write one list a rank, with | between them",
        )
    each = min(ranks) if len(ranks) > 1 else ranks[0] // num_ranks
    if not each:
        yield Finding(path=path, value=binding, message=f"{ranks[0]} CPUs for {num_ranks} ranks", hint="bind more CPUs")
    elif isinstance(threads, int) and threads > each:
        yield Finding(
            path="hardware.num_threads",
            value=threads,
            message=f"{threads} threads on {each} bound CPUs would share cores",
            hint=f"write at most {each}, or bind more CPUs",
        )


def _cpus(text: str) -> int:
    """Returns the number of CPUs in a list such as `0-3,8`."""
    spans = [part.split("-") for part in text.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
