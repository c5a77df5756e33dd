"""Measures this machine, one core and all, with the probes of the native library."""

from msgspec.structs import replace

from appliance.hardware import HardwareFacts, MeasuredFacts
from appliance.kernels.device_rates import device_rates
from appliance.kernels.levels import usable_level
from appliance.kernels.measure import PROBE_SECONDS, READ_BUFFER_BYTES
from appliance.kernels.measure import measure as probe
from appliance.kernels.meetings import measure_meeting


def measure(
    level: str, num_cores: int, seconds: float = PROBE_SECONDS, buffer_bytes: int = READ_BUFFER_BYTES
) -> MeasuredFacts:
    """Measures with the library of one CPU level. Raises KernelSetError or BindError."""
    every, one = (probe(level, threads, seconds, buffer_bytes) for threads in (num_cores, 1))
    return MeasuredFacts(
        read_bandwidth=every.read_bandwidth,
        f32_peak=every.f32_peak,
        bf16_peak=every.bf16_peak,
        int8_peak=every.int8_peak,
        one_core_read_bandwidth=one.read_bandwidth,
        one_core_f32_peak=one.f32_peak,
        one_core_bf16_peak=one.bf16_peak,
        one_core_int8_peak=one.int8_peak,
        kernel_rates=dict(every.kernel_rates),
        one_core_kernel_rates=dict(one.kernel_rates),
        meeting_s=measure_meeting(level) if num_cores > 1 else None,
    )


def measure_machine(facts: HardwareFacts, kernel_set: str) -> MeasuredFacts:
    """Measures the CPU, and for a kernel set of a GPU the first accelerator. Raises KernelSetError or BindError."""
    if kernel_set.startswith("cpu-"):
        return measure(kernel_set.removeprefix("cpu-"), facts.cpu.num_cores)
    found = measure(usable_level(facts), facts.cpu.num_cores)
    return replace(found, device=device_rates(f"{kernel_set}:0"))
