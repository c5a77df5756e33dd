"""Predictions for GPUs, against what was measured on an H100, and where nothing was."""

import msgspec
import pytest

from appliance.hardware import MeasuredFacts, Profile, load_profiles, select_profile
from appliance.hardware.facts import MeasuredDevice
from appliance.hardware.speed import SHEET_BANDWIDTH, DeviceSpeed
from appliance.plan.estimate import Workload, estimate
from appliance.plan.programs import Programs, program_of

from .checkpoints import from_config
from .machines import MODEL, load, machine, plan

H100 = "nvidia-h100-sxm-80g"
NEAR = 0.15
DECODE = {(1, 512): 183, (16, 512): 2_550, (64, 512): 8_200, (256, 512): 18_300, (16, 8192): 1_330}  # tokens a second
PREFILL = {512: 40_000, 4096: 41_000, 2048: 43_500}
MODEL_8B = from_config("llama-3.1-8b")


def profile_of(name: str) -> Profile:
    return select_profile(machine(name), load_profiles()).profile


def predicted(name: str, work: Workload, *overrides: str) -> tuple[float, float, str]:
    """(tokens of all streams, tokens of a prompt, what bounds a decode step)"""
    found = plan(load(MODEL + "  max_model_len: 16K\n", *overrides), MODEL_8B, machine(name))
    speed = profile_of(name).speed(machine(name))
    assert speed is not None
    result = estimate(found, program_of(found, MODEL_8B, Programs()), speed, work)
    assert result is not None
    return result.output_tokens_per_s, result.prefill_tokens_per_s, result.decode_bound


@pytest.mark.parametrize(("streams", "prompt"), DECODE)
def test_decode_of_8b_is_as_measured_on_an_h100(streams: int, prompt: int) -> None:
    found = predicted(H100, Workload(streams=streams, prompt=prompt, answer=2))[0]
    assert found == pytest.approx(DECODE[streams, prompt], rel=NEAR)


@pytest.mark.parametrize("prompt", PREFILL)
def test_prefill_of_8b_is_as_measured_on_an_h100(prompt: int) -> None:
    assert predicted(H100, Workload(prompt=prompt))[1] == pytest.approx(PREFILL[prompt], rel=NEAR)


def test_codes_are_read_sooner_by_one_stream_and_made_floats_for_many_rows() -> None:
    for streams, is_faster in ((1, True), (64, False)):
        work = Workload(streams=streams, prompt=512)
        dense, coded = (predicted(H100, work, *overrides)[0] for overrides in ((), ("model.quantization=int4",)))
        assert (coded > dense) == is_faster


def test_fp8_computes_at_its_own_rate_and_reads_half_the_bytes() -> None:
    """Prefill is 1.5 times as fast by what products of these sizes were measured to take, as attention stays; a few
    rows read codes; without activations of FP8, many rows are made floats of first."""
    fp8, plain = "model.quantization=fp8", "hardware.kernels.quantize_activations=false"
    for streams, prompt, least, most in ((1, 4096, 1.4, 1.8), (256, 512, 1.0, 1.6)):
        work = Workload(streams=streams, prompt=prompt, answer=2)
        place = 1 if streams == 1 else 0  # of a prompt, or of streams that decode
        floats, codes, made = (predicted(H100, work, *overrides)[place] for overrides in ((), (fp8,), (fp8, plain)))
        assert least < codes / floats < most, streams
        assert made < codes, streams
    one = Workload(streams=1, prompt=512, answer=2)
    assert 1.0 < predicted(H100, one, fp8)[0] / predicted(H100, one)[0] < 2.0


def test_what_is_not_measured_says_so() -> None:
    speed = profile_of("nvidia-l4-24g").speed(machine("nvidia-l4-24g"))
    assert isinstance(speed, DeviceSpeed)
    assert speed.bandwidth == pytest.approx(SHEET_BANDWIDTH * 300e9)
    assert "data sheet" in speed.described
    assert "not measured here" in speed.described
    assert "measured on an H100" in profile_of(H100).speed(machine(H100)).described  # type: ignore[union-attr]


def test_what_doctor_measured_counts_before_the_card() -> None:
    measured = MeasuredFacts(read_bandwidth=1e11, device=MeasuredDevice(copy_bandwidth=2e12, peaks={"bf16": 5e14}))
    facts = msgspec.structs.replace(machine(H100), measured=measured)
    speed = profile_of(H100).speed(facts)
    assert isinstance(speed, DeviceSpeed)
    assert (speed.bandwidth, speed.peaks, speed.origin) == (2e12, {"bf16": 5e14}, "measured")


def test_of_an_unknown_card_nothing_is_predicted() -> None:
    facts = machine(H100)
    other = msgspec.structs.replace(facts.accelerators[0], name="Another")
    assert profile_of(H100).speed(msgspec.structs.replace(facts, accelerators=(other,))) is None


def test_every_known_accelerator_has_its_figures() -> None:
    found = 0
    for profile in load_profiles():
        assert (profile.kernel_shares is None) == (profile.device == "cpu")
        found += len(profile.cards)
    assert found >= 20
