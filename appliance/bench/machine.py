"""What this machine gives while something is measured on it, beside the best that it was ever measured to give."""

from appliance.base.errors import ApplianceError
from appliance.bench.roofline import rates_of_device
from appliance.hardware import HardwareFacts, MeasuredFacts, load_profiles, select_profile
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.device_rates import device_rates
from appliance.kernels.errors import KernelSetError
from appliance.kernels.measure import READ_BUFFER_BYTES, glance


def rates_now(facts: HardwareFacts) -> MeasuredFacts:
    """Measures all cores at this moment, by the first kernel set of the profile that runs here; some seconds.

    Of a machine with a profile for accelerators: its first one. Raises ApplianceError where none does.
    """
    kind = select_profile(facts, load_profiles()).profile.device
    if kind != "cpu":
        return rates_of_device(device_rates(f"{kind}:0"))
    return glance(_usable_level(facts), facts.cpu.num_cores, buffer_bytes=_buffer_bytes(facts))


def mean_rates(first: MeasuredFacts, second: MeasuredFacts) -> MeasuredFacts:
    """Averages the rates of two moments that `rates_now` measured."""

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else (a + b) / 2

    return MeasuredFacts(
        read_bandwidth=(first.read_bandwidth + second.read_bandwidth) / 2,
        f32_peak=mean(first.f32_peak, second.f32_peak),
        bf16_peak=mean(first.bf16_peak, second.bf16_peak),
        int8_peak=mean(first.int8_peak, second.int8_peak),
    )


def _buffer_bytes(facts: HardwareFacts) -> int:
    """More than the caches hold, and no more than that: the server that is measured needs the memory."""
    return min(READ_BUFFER_BYTES, max(4 * facts.cpu.l3_bytes, 256 << 20))


def _usable_level(facts: HardwareFacts) -> str:
    names = select_profile(facts, load_profiles()).profile.kernel_sets
    for name in names:
        if not name.startswith("cpu-"):
            continue
        try:
            load_kernel_set(name)
        except KernelSetError:
            continue
        return name.removeprefix("cpu-")
    raise ApplianceError(f"no kernel set of {', '.join(names)} can measure this machine")
