"""Floors, shares and what is around them; and a profiled run end to end."""

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.bench.offline import run_profiled
from appliance.bench.roofline import measured_or_refuse, rooflines
from appliance.bench.scenario import Scenario
from appliance.bench.text import render_profile
from appliance.engine.profile import EngineProfile, OperatorProfile, StepsProfile
from appliance.hardware import load_facts
from appliance.hardware.facts import MeasuredFacts
from tests.bench.scripted import scripted_engine

MEASURED = MeasuredFacts(read_bandwidth=10e9, f32_peak=100e9, int8_peak=400e9)
OPERATORS = (
    OperatorProfile(label="linear down", unit="int8", seconds=0.04, bytes=200_000_000, operations=800_000_000),
    OperatorProfile(label="attention", unit="f32", seconds=0.03, bytes=10_000_000, operations=2_000_000_000),
    OperatorProfile(label="rms_norm", unit="f32", seconds=0.01, bytes=0, operations=0),
)
STEPS = StepsProfile(
    steps=2, tokens=8, sampled=8, phases={"schedule": 0.002, "model": 0.09, "sample": 0.008}, operators=OPERATORS
)
GIVEN = MeasuredFacts(read_bandwidth=10e9, f32_peak=50e9, int8_peak=400e9)  # a neighbour took half of the f32 products
PROFILE = EngineProfile(seconds=0.2, kinds={"decode": STEPS}, threads={"MainThread": 0.1})


def test_floors_are_the_longer_of_reading_and_computing() -> None:
    (found,) = rooflines(PROFILE, MEASURED)
    parts = {part.name: part for part in found.parts}
    assert (parts["linear down"].floor_s, parts["linear down"].bound) == (pytest.approx(0.01), "memory")
    assert (parts["attention"].floor_s, parts["attention"].bound) == (pytest.approx(0.01), "f32")
    assert (parts["rms_norm"].floor_s, parts["rms_norm"].bound) == (0.0, "")
    assert (found.steps, found.tokens) == (2, 4.0)
    assert found.floor_s == pytest.approx(0.02)
    assert found.achieved == pytest.approx(0.4)


def test_parts_are_the_whole_step() -> None:
    (found,) = rooflines(PROFILE, MEASURED)
    assert found.seconds == pytest.approx(0.1 / 2)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds)
    assert {"python: schedule", "python: sample", "python: the call, and between operators"} < {
        part.name for part in found.parts
    }


def test_a_second_floor_is_of_what_the_machine_gave() -> None:
    (found,) = rooflines(PROFILE, MEASURED, GIVEN)
    assert found.floor_s == pytest.approx(0.02)
    assert found.given_floor_s == pytest.approx(0.03)  # attention's doubled
    assert found.achieved_of_given == pytest.approx(0.6)
    text = render_profile((found,), PROFILE, MEASURED, GIVEN)
    assert "floor 20.000 ms, reached 40% (60% of what the machine gave)" in text
    assert "of what doctor measured: read 10.0 of 10.0 GB/s, f32 50.0 of 100.0 Gop/s, int8 400.0 of 400.0 Gop/s" in text


def test_text_has_every_part_and_the_share() -> None:
    text = render_profile(rooflines(PROFILE, MEASURED), PROFILE)
    assert "decode: 2 steps of 4.0 tokens, 50.000 ms each; floor 20.000 ms, reached 40%" in text
    assert "python: schedule" in text
    assert "on a CPU, of 0.20 s: MainThread 0.10 s" in text
    assert "reached 40%" not in render_profile(rooflines(PROFILE, None), PROFILE)


def test_text_tells_what_decodes_read_together() -> None:
    shared = msgspec.structs.replace(STEPS, shared_keys=3000)
    text = render_profile(rooflines(msgspec.structs.replace(PROFILE, kinds={"decode": shared}), MEASURED), PROFILE)
    assert "1,500 cached tokens a step were not read, as another decode had read them" in text
    assert "cached tokens" not in render_profile(rooflines(PROFILE, MEASURED), PROFILE)


def test_a_roofline_needs_a_measured_machine() -> None:
    facts = msgspec.structs.replace(load_facts("server-epyc-9654"), measured=None)
    with pytest.raises(ApplianceError, match="measured"):
        measured_or_refuse(facts)


def test_a_profiled_run_leaves_the_warm_up_out() -> None:
    scenario = Scenario(name="t", kind="throughput", num_prompts=2, input_len=9, output_len=5, num_warmups=2)
    with scripted_engine() as engine:
        rounds, profile = run_profiled(scenario, engine, (), 400, lambda done, total: None)
    assert [len(records) for records in rounds] == [2] * scenario.repeats
    tokens = sum(steps.tokens for steps in profile.kinds.values())
    assert tokens == scenario.repeats * 2 * (9 + 4)
