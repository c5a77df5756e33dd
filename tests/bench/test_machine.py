"""What the machine gives at a moment, and a server measured against it."""

import ctypes
from pathlib import Path

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.bench.machine import mean_rates, rates_now
from appliance.bench.run import BenchSubject, bench_server
from appliance.bench.scenario import Scenario
from appliance.bench.sse import BenchTarget
from appliance.engine.scripted import Script
from appliance.hardware import MeasuredFacts, load_facts, probe_machine
from appliance.kernels.cpu.abi import LAYOUTS, Rates
from appliance.kernels.cpu.library import load_level
from appliance.kernels.measure import thread_pool
from tests.server.harness import running

BEST = MeasuredFacts(read_bandwidth=1e15, f32_peak=1e18, bf16_peak=1e18, int8_peak=1e18)


def test_rates_of_this_machine() -> None:
    rates = rates_now(probe_machine())
    assert 1e8 < rates.read_bandwidth < 1e13
    for peak in (rates.f32_peak, rates.bf16_peak, rates.int8_peak):
        assert peak is not None
        assert 1e8 < peak < 1e15
    assert rates.kernel_rates == {}


def test_a_mean_of_passes_is_no_more_than_the_best() -> None:
    library, rates = load_level("generic"), Rates()
    probes = library.functions
    with thread_pool(library, 1) as pool:
        library.check(probes.appl_measure_read(pool, 8 << 20, 0.05, ctypes.byref(rates)), "reading")
        assert 0 < rates.mean < rates.best  # of dozens of passes
        library.check(probes.appl_measure_peak(pool, LAYOUTS["f32"], 0.2, ctypes.byref(rates)), "multiplying")
        assert 0 < rates.mean < rates.best


def test_only_a_kernel_set_that_runs_can_measure() -> None:
    with pytest.raises(ApplianceError, match=r"cuda:0 cannot be measured: .*there is no cuda:0 device"):
        rates_now(load_facts("nvidia-a10-24g"))


def test_the_mean_of_two_moments() -> None:
    first = MeasuredFacts(read_bandwidth=10e9, f32_peak=100e9, bf16_peak=100e9, int8_peak=400e9)
    second = MeasuredFacts(read_bandwidth=20e9, f32_peak=300e9, int8_peak=600e9)
    mean = mean_rates(first, second)
    assert (mean.read_bandwidth, mean.f32_peak, mean.bf16_peak, mean.int8_peak) == (15e9, 200e9, None, 500e9)


def test_a_roofline_of_a_server_says_what_the_machine_gave(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(probe_machine(), measured=BEST)
    scenario = Scenario(name="t", kind="serve", num_prompts=1, input_len=4, output_len=3, num_warmups=0, repeats=1)
    subject = BenchSubject(label="t", target="", model="scripted")
    with running(tmp_path, Script(), apis=["openai", "debug"]) as server:
        target = BenchTarget(url=server.url, model="scripted", api_key=None)
        result = bench_server(scenario, target, subject, 100, facts, lambda done, total: None, "roofline")
    assert result.measured == BEST
    assert result.given is not None
    assert 1e8 < result.given.read_bandwidth < 1e13
    assert result.rooflines
