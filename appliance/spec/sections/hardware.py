"""`hardware` and `parallelism`: the machine, and how the model is spread over devices."""

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from appliance.spec.fields import Section, field
from appliance.spec.scalars import (
    Auto,
    DottedPath,
    Duration,
    Fraction,
    NonNegativeInt,
    Port,
    PositiveInt,
    RankCount,
    Size,
    Text,
    Words,
)

_CPUS = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"  # Linux numbers at most 8,192
CpuBinding = Annotated[
    str,
    StringConstraints(pattern=rf"^(auto|all|{_CPUS}([|/]{_CPUS})*)$"),
    Words("auto, all, or CPU lists such as 0-15 or 0-7|8-15 (one list a rank)"),
]


class MemorySection(Section):
    """Shares of device memory."""

    doc: ClassVar[str] = "How much memory the engine may use, and for what."

    utilization: Fraction = field(
        0.9,
        "Share of the device memory that is free to us (on a CPU: of the memory the cgroup allows) that weights, "
        "activations and KV cache may take together. It is for each instance: two on one device take half each.",
        vllm="gpu_memory_utilization",
    )
    kv_cache: Auto[Size] = field(
        "auto",
        "Bytes of KV cache.",
        auto="what is left after weights and activations; on a CPU of that at most a quarter of the budget, 4 GiB or "
        "one full sequence, whichever is most",
        vllm="kv_cache_memory_bytes",
    )
    swap_space: Size = field(
        0,
        "Host memory a device for blocks and recurrent states of preempted sequences, which are copied back, checked "
        "by a checksum, where that takes less time than to compute them again. 0 is none.",
    )
    cpu_offload: Size = field(
        0,
        "Most host memory for the matrices of whole layers, spread over the model, that a GPU copies in each step: "
        "while one layer is computed, the next is copied. A step takes at least the time of these copies. 0 is none.",
        vllm="cpu_offload_gb",
    )
    lock: bool = field(
        False,
        "Lock weights and caches in memory, so that they are never paged out; each rank locks its own. The limit of "
        "locked memory (ulimit -l) has to allow it. Only on CPU sets.",
    )


class KernelsSection(Section):
    """The kernels that may run."""

    doc: ClassVar[str] = "Which kernels may be planned. The plan says why each was chosen or refused."

    kernel_set: Auto[Text] = field(
        "auto", "One kernel set by name: cpu-avx2, cpu-avx512, reference ...", auto="the best the hardware can run"
    )
    attention_backend: Auto[Text] = field(
        "auto",
        "Implementation of attention, by the name that the plan gives it: that of a kernel set of a CPU, or triton or "
        "torch in one on torch. Each set has one, so another name is refused, with what there is.",
        auto="the kernel set's",
    )
    disabled: list[Text] = field([], "Kernel sets never to choose, by name.", vllm="disabled_kernels")
    batch_invariant: Auto[bool] = field(
        "auto",
        "Rows round alike in every batch, chunk and draft, so that answers are the same to the bit whatever runs "
        "beside them. CPU sets always do, at no cost; sets of GPUs then multiply by fixed tiles of their own, which is "
        "slower.",
        auto="true where it costs nothing",
    )
    quantize_activations: Auto[bool] = field(
        "auto",
        "Round activations to 8 bits, a scale for each token and group, in products with weights of integer codes: "
        "int8 to int4, MXFP4, NVFP4, IQ4_NL and IQ4_XS. On NVIDIA GPUs from sm89: to FP8, a scale for each token, in "
        "products with FP8 weights that have a scale a row.",
        auto="true where the kernel set can and the model generates",
    )
    screen_logits: Auto[bool] = field(
        "auto",
        "Keep an 8-bit copy of an output head of 16 or 32 bits, or a 6-bit copy of one of 8 bits. Where a step's "
        "requests are greedy or sample with a top_k of 128 at most, and want tokens only, it tells which few logits "
        "can count: no others are computed. The tokens are the same. A 6-bit copy serves up to four sequences a step.",
        auto="true where the kernel set can, the head has 4 million elements or more, a 6-bit copy saves a 32nd of "
        "what a token reads, and there is room for it",
    )


class HardwareSection(Section):
    """The machine."""

    doc: ClassVar[str] = "The machine: its profile, its memory, its threads, its kernels."

    profile: Auto[Text] = field("auto", "A profile by name.", auto="the most specific whose rules match the facts")
    device: Literal["auto", "cpu", "cuda", "rocm"] = field(
        "auto",
        "Kind of device. Which of several is chosen by CUDA_VISIBLE_DEVICES, or HIP_VISIBLE_DEVICES on AMD.",
        auto="the best kind that is there and that the installed packages can use",
    )
    memory: MemorySection = field(MemorySection, "Shares of memory.")
    num_threads: Auto[PositiveInt] = field(
        "auto", "Threads of the CPU kernels.", auto="the physical cores that affinity and cgroup allow"
    )
    cpu_omp_threads_bind: CpuBinding = field(
        "auto",
        "CPUs of the threads: all that the process may use, or a list for each rank, those of one replica after those "
        "of another. As many threads as a list has CPUs are bound to one each, fewer to all of the list; memory is "
        "taken of the NUMA nodes of these first.",
        auto="of several ranks or replicas on several NUMA nodes, those of a node for each; otherwise all",
    )
    kernels: KernelsSection = field(KernelsSection, "Which kernels may be planned.")


class ParallelismSection(Section):
    """Ranks."""

    doc: ClassVar[str] = "How the model is spread over devices and nodes."

    tensor: RankCount = field(1, "Ranks that share each layer.", vllm="tensor_parallel_size")
    pipeline: RankCount = field(1, "Stages of consecutive layers.", vllm="pipeline_parallel_size")
    data: RankCount = field(
        1,
        "Replicas: whole engines with one plan behind one port, each with its share of the cores and of the memory. "
        "With servers on several machines it is the number of all.",
        vllm="data_parallel_size",
    )
    expert: bool = field(
        False,
        "Spread whole experts over ranks, in place of slices of each. Tensor ranks always have whole experts, so it "
        "asks for what they do; with several replicas the ranks of all have some experts each, and all run their "
        "steps together.",
        vllm="enable_expert_parallel",
    )
    backend: Literal["auto", "uni", "mp", "ray", "external_launcher"] = field(
        "auto",
        "How ranks are started: mp as processes of this machine, which those of others join; ray, with nnodes, also as "
        "actors on other nodes of a Ray cluster.",
        auto="uni for one rank, mp for several",
        built_values=("auto", "uni", "mp", "ray"),
        vllm="distributed_executor_backend",
    )
    distributed_timeout: Duration = field(
        60.0, "Longest wait of a rank for another, after which the step fails.", vllm="distributed_timeout_seconds"
    )
    nnodes: RankCount = field(
        1, "Machines that have the ranks of a replica. All but the first join: `appliance ranks join`.", vllm="nnodes"
    )
    master_addr: Text | None = field(
        None, "Address of the first machine, at which the others reach it.", vllm="master_addr"
    )
    master_port: Port = field(29501, "Port at which the first machine lets ranks join.", vllm="master_port")
    join_timeout: Duration = field(600.0, "Longest wait for ranks of other machines to join.")
    layer_partition: list[PositiveInt] = field(
        [], "Layers of each pipeline stage. Empty: an even split.", vllm="pp_layer_partition"
    )
    disable_custom_all_reduce: bool = field(
        False, "Exchange between GPUs by the vendor's library only, which is what kernel sets of GPUs do either way."
    )
    data_parallel_rank: NonNegativeInt | None = field(
        None,
        "The number of this server's replica, of which it has one: a balancer spreads requests over the servers. It is "
        "the label `engine` of metrics.",
    )
    data_parallel_start_rank: NonNegativeInt | None = field(
        None, "The number of this machine's first replica, with data_parallel_hybrid_lb."
    )
    data_parallel_size_local: RankCount | None = field(None, "Replicas on this machine. Default: all.")
    data_parallel_hybrid_lb: bool = field(
        False, "Each machine balances its own replicas; an outer balancer spreads requests over the machines."
    )
    expert_placement_strategy: Literal["linear", "round_robin"] = field(
        "linear",
        "Which rank has which experts: linear, neighbours in one rank; round_robin, one after the other over the "
        "ranks, which spreads groups of experts that tokens choose together. It needs several tensor ranks, or "
        "replicas with experts among them.",
        vllm="expert_placement_strategy",
    )
    enable_eplb: bool = field(
        False,
        "Move experts between tensor ranks by their load, while the engine serves. It needs expert: true, and ranks of "
        "a CPU set.",
    )
    num_redundant_experts: NonNegativeInt = field(
        0, "Extra copies of busy experts, in each layer; with enable_eplb. Experts and copies divide by the ranks."
    )
    eplb_window_size: PositiveInt = field(1000, "Steps of load that are remembered.")
    eplb_step_interval: PositiveInt = field(3000, "Steps between rearrangements.")
    eplb_log_balancedness: bool = field(False, "Log how alike the loads of ranks are, in each step.")
    enable_multimodal_encoder_data_parallel: bool = field(
        False, "Spread the vision encoder by data, not by tensor.", built=False
    )
    worker_extension_cls: DottedPath | None = field(
        None,
        "A class of your own, made on every rank, whose methods POST /collective_rpc calls on all of them, with "
        "`debug` in endpoints.apis. Needs decoding.trust_plugins; see docs/guides/plugins.md.",
    )
