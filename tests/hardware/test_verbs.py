"""The verbs of this area, through the command line."""

import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml

from appliance.cli import doctor, measure
from appliance.cli.app import main
from appliance.hardware import HardwareFacts, MeasuredFacts, load_facts, probe_machine
from appliance.hardware.facts import MeasuredDevice
from appliance.kernels.layout import Layout


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))


def test_list_marks_the_chosen_profile_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list", "--explain", "--hardware", "server-xeon-gold-6148"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("server-xeon-gold-6148: Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz, 40 cores\n* cpu-avx512 ")
    assert "  cpu-avx2         matches  priority 20" in out
    assert "(missing: amx_bf16, amx_int8, amx_tile, avx512_vnni)" in out
    assert "fails: accelerators.vendor equals nvidia (found: no accelerator)" in out


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list", "--json", "--hardware", "nvidia-8xh100-sxm-80g"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["chosen"] == "nvidia-sm90"
    chosen = next(profile for profile in document["profiles"] if profile["name"] == "nvidia-sm90")
    assert chosen["matches"]
    assert all(condition["holds"] for condition in chosen["conditions"])


def test_list_answers_3_where_none_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list", "--hardware", "aws-graviton3-c7g-16xlarge"]) == 3
    told = capsys.readouterr()
    assert "cpu-generic" in told.out
    assert "no profile matches" in told.err


def test_show_prints_a_profile_that_can_be_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", "amd-gfx942"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["kernel_sets"] == ["rocm"]
    assert main(["profile", "show", "nothing"]) == 3
    assert "there is no profile 'nothing'" in capsys.readouterr().err


def here() -> HardwareFacts:
    return load_facts("laptop-ryzen-7-5800u")


def test_doctor_tells_facts_profile_and_kernels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe_machine", here)
    monkeypatch.setattr(doctor, "load_kernel_set", lambda name: None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "machine       AMD Ryzen 7 5800U with Radeon Graphics, 8 cores" in out
    assert "profile       cpu-avx2 (tested here)" in out
    assert "kernels       cpu-avx2: ready" in out
    assert "measured      nothing yet" in out


def test_doctor_answers_3_where_no_kernels_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe_machine", lambda: load_facts("nvidia-h100-sxm-80g"))
    assert main(["doctor"]) == 3
    told = capsys.readouterr()
    assert "kernels       cuda: there is no cuda device: torch" in told.out
    assert "no kernel set of the profile nvidia-sm90 can run here" in told.err


def test_measured_figures_are_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    figures = MeasuredFacts(read_bandwidth=2e10, f32_peak=3e11, one_core_read_bandwidth=1.5e10)
    monkeypatch.setattr(doctor, "load_kernel_set", lambda name: None)
    monkeypatch.setattr(doctor, "measure_machine", lambda facts, kernel_set: figures)
    assert main(["doctor", "--measure"]) == 0
    out = capsys.readouterr().out
    assert "read          20.0 GB/s; one core 15.0 GB/s\n" in out
    assert "f32           300.0 Gop/s\n" in out
    assert "bf16 " not in out.split("measured")[-1].split("kernels")[-1]
    assert probe_machine().measured == figures


def test_a_gpu_is_measured_beside_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    found = MeasuredDevice(copy_bandwidth=3e12, peaks={"bf16": 7e14})
    monkeypatch.setattr(measure, "measure", lambda level, num_threads: MeasuredFacts(read_bandwidth=2e10))
    monkeypatch.setattr(measure, "device_rates", lambda device: asked.append(device) or found)
    figures = measure.measure_machine(probe_machine(), "cuda")
    assert (figures.read_bandwidth, figures.device, asked) == (2e10, found, ["cuda:0"])


def test_the_native_probes_answer() -> None:
    figures = msgspec.structs.asdict(measure.measure("generic", 2, seconds=0.01, buffer_bytes=1 << 23))
    for name in ("kernel_rates", "one_core_kernel_rates"):
        rates = figures.pop(name)
        assert set(rates) == {*Layout, "attention"}
        assert all(rate > 0 for rate in rates.values())
    assert figures.pop("device") is None
    meeting_s = figures.pop("meeting_s")
    assert meeting_s is None if len(os.sched_getaffinity(0)) < 2 else 0 < meeting_s < 1e-3
    assert set(figures) == {f"{cores}{what}" for cores in ("", "one_core_")
                            for what in ("read_bandwidth", "f32_peak", "bf16_peak", "int8_peak")}  # fmt: skip
    assert all(figure > 0 for figure in figures.values())
