"""HardwareFacts: a versioned, JSON-serialisable snapshot of one machine. Values only; probing lives beside it."""

from typing import Literal

import msgspec

FACTS_VERSION = 1

Vendor = Literal["nvidia", "amd"]


class NumaNode(msgspec.Struct, frozen=True):
    """A part of the machine whose CPUs share a memory that is nearer to them than others."""

    number: int
    cpus: tuple[int, ...]  # those that this process may run on


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the operating system lets this process use of the CPU."""

    vendor: str  # "AuthenticAMD", "GenuineIntel", "ARM"
    model_name: str
    architecture: str  # "x86_64", "aarch64"
    flags: tuple[str, ...]  # sorted, as /proc/cpuinfo spells them
    num_cores: int  # physical cores in the affinity mask, capped by the cgroup quota, at least 1
    num_threads: int  # logical CPUs in the affinity mask, capped by the cgroup quota
    affinity: tuple[int, ...]  # logical CPU numbers this process may run on
    l1d_bytes: int
    l2_bytes: int  # of one core
    l3_bytes: int  # of the whole package
    num_numa_nodes: int
    numa_nodes: tuple[NumaNode, ...] = ()  # with CPUs of the affinity mask; without any nothing is known of them


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    total_bytes: int  # of the machine
    limit_bytes: int  # the smaller of total and the cgroup limit
    page_bytes: int


class AcceleratorFacts(msgspec.Struct, frozen=True, kw_only=True):
    vendor: Vendor
    name: str
    architecture: str  # "sm90", "gfx942"
    memory_bytes: int
    num_units: int  # streaming multiprocessors or compute units
    driver: str
    interconnect: str  # "nvlink", "pcie", "xgmi"


class MeasuredDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor --measure` found of a GPU: bytes read and written by copies, and operations of products, a second.
    peaks: by type, "f32", "bf16", "f8"."""

    copy_bandwidth: float
    peaks: dict[str, float]


class MeasuredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of `appliance doctor --measure`: bytes and operations a second, of all cores where no name says less.

    Zero is never used for unknown.
    """

    read_bandwidth: float
    bf16_peak: float | None = None
    int8_peak: float | None = None
    f32_peak: float | None = None
    one_core_read_bandwidth: float | None = None
    one_core_bf16_peak: float | None = None
    one_core_int8_peak: float | None = None
    one_core_f32_peak: float | None = None
    kernel_rates: dict[str, float] = {}  # of the kernels on whole prompts, by weight layout and "attention"
    one_core_kernel_rates: dict[str, float] = {}
    meeting_s: float | None = None  # in which two ranks, a core each, make 8 KiB known to each other
    device: MeasuredDevice | None = None  # of the first accelerator


class HardwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    version: int = FACTS_VERSION
    name: str  # host-independent label, such as "nvidia-h100-sxm-80g" or "this-machine"
    os: str
    cpu: CpuFacts
    memory: MemoryFacts
    accelerators: tuple[AcceleratorFacts, ...] = ()
    measured: MeasuredFacts | None = None
    torch: str | None = None  # its version with its build; "": it is not installed; None: nothing is known
    built_levels: tuple[str, ...] | None = None  # of the CPU, whose native libraries are installed; None: taken as all
