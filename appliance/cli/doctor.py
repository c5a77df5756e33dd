"""`appliance doctor`: prints this machine's facts, its profile, the built kernels, and its measured speed."""

import json
import sys
from dataclasses import dataclass

import msgspec

from appliance import __version__
from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.cli.measure import measure_machine
from appliance.cli.profile import describe
from appliance.hardware import (
    HardwareError,
    HardwareFacts,
    MeasuredFacts,
    ProfileSelection,
    load_profiles,
    probe_machine,
    select_profile,
)
from appliance.hardware.measured import store_measured
from appliance.kernels.binding import load_kernel_set


@dataclass(frozen=True, slots=True)
class _KernelStatus:
    name: str
    is_usable: bool
    problem: str | None


def run(*, measured: bool = False, as_json: bool = False) -> int:
    """Prints facts, profile and kernel sets. Returns 3 if no kernel set of the profile can run here.

    measured: measure read bandwidth and arithmetic peaks first (under half a minute) and keep the figures.
    """
    facts = probe_machine()
    selection = select_profile(facts, load_profiles())
    kernels = [_status(name) for name in selection.profile.kernel_sets]
    usable = next((kernel.name for kernel in kernels if kernel.is_usable), None)
    if measured and usable is not None:
        print(f"measuring with {usable} ...", file=sys.stderr)
        figures = measure_machine(facts, usable)
        facts = msgspec.structs.replace(facts, measured=figures)
        store_measured(facts, figures)
    if as_json:
        print(json.dumps(_as_json(facts, selection, kernels), indent=2))
    else:
        _print(facts, selection, kernels)
    if usable is None:
        raise HardwareError(f"no kernel set of the profile {selection.profile.name} can run here")
    return ExitCode.OK


def _status(name: str) -> _KernelStatus:
    """Returns whether a kernel set is built and runs on this processor, with the message of its loader."""
    known = KERNEL_SETS.get(name)
    if known is None or not known.is_built:
        return _KernelStatus(name, False, "not in this version")
    try:
        load_kernel_set(name)
    except ApplianceError as error:
        return _KernelStatus(name, False, str(error))
    return _KernelStatus(name, True, None)


def _print(facts: HardwareFacts, selection: ProfileSelection, kernels: list[_KernelStatus]) -> None:
    cpu, memory, profile = facts.cpu, facts.memory, selection.profile
    caches = f"L1d {format_size(cpu.l1d_bytes)}, L2 {format_size(cpu.l2_bytes)} a core; L3 {format_size(cpu.l3_bytes)}"
    limit = f" (of {format_size(memory.total_bytes)})" if memory.limit_bytes < memory.total_bytes else ""
    print(f"appliance     {__version__}, Python {sys.version.split()[0]}")
    print(f"machine       {describe(facts)}")
    print(f"cpu           {cpu.architecture}, {cpu.num_cores} cores, {cpu.num_threads} threads; {caches}")
    print(f"memory        {format_size(memory.limit_bytes)} allowed{limit}")
    for device in facts.accelerators:
        size, units = format_size(device.memory_bytes), f"{device.num_units} units"
        print(f"accelerator   {device.name}, {device.architecture}, {size}, {units}, driver {device.driver}")
    print(f"profile       {profile.name} ({profile.support}): {selection.reason}")
    for kernel in kernels:
        print(f"kernels       {kernel.name}: {kernel.problem or 'ready'}")
    print("\n".join(_measured_lines(facts)))


def _measured_lines(facts: HardwareFacts) -> list[str]:
    if facts.measured is None:
        return ["measured      nothing yet; `appliance doctor --measure` does"]
    figures = facts.measured
    rows = (
        ("read", "GB/s", figures.read_bandwidth, figures.one_core_read_bandwidth),
        ("f32", "Gop/s", figures.f32_peak, figures.one_core_f32_peak),
        ("bf16", "Gop/s", figures.bf16_peak, figures.one_core_bf16_peak),
        ("int8", "Gop/s", figures.int8_peak, figures.one_core_int8_peak),
    )
    rates, of_one = figures.kernel_rates, figures.one_core_kernel_rates
    kernels = [(f"kernel {name}", "Gop/s", rate, of_one.get(name)) for name, rate in rates.items()]
    lines = [_measured_line(*row) for row in (*rows, *kernels, *_device_rows(figures)) if row[2] is not None]
    if figures.meeting_s is not None:
        lines.append(f"{'two ranks':<13} {1e6 * figures.meeting_s:.1f} us to make 8 KiB known to each other")
    return lines


def _device_rows(figures: MeasuredFacts) -> list[tuple[str, str, float | None, float | None]]:
    if figures.device is None:
        return []
    peaks = [(f"device {name}", "Gop/s", peak, None) for name, peak in figures.device.peaks.items()]
    return [("device copy", "GB/s", figures.device.copy_bandwidth, None), *peaks]


def _measured_line(name: str, unit: str, every: float | None, one: float | None) -> str:
    """Writes the rate of all cores, and of one core."""
    assert every is not None
    of_one = f"; one core {one / 1e9:.1f} {unit}" if one is not None else ""
    return f"{name:<13} {every / 1e9:.1f} {unit}{of_one}"


def _as_json(facts: HardwareFacts, selection: ProfileSelection, kernels: list[_KernelStatus]) -> dict[str, object]:
    return {
        "version": __version__,
        "hardware": msgspec.to_builtins(facts),
        "profile": selection.profile.name,
        "support": selection.profile.support,
        "reason": selection.reason,
        "kernel_sets": [
            {"name": kernel.name, "ready": kernel.is_usable, "problem": kernel.problem} for kernel in kernels
        ],
    }
