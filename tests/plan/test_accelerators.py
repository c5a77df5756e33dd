"""Why a GPU is not used, or cannot be: one sentence each, in a plan or before there is one."""

from functools import partial

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.catalog.drivers import driver_obstacle
from appliance.catalog.gpu_operators import GPU_ARCHITECTURES
from appliance.hardware import HardwareError, HardwareFacts, load_profiles, select_profile
from appliance.kernels.gpu.triton.architectures import ARCHITECTURES
from appliance.plan.accelerators import eight_bits, obstacle
from appliance.plan.compile import run_passes
from appliance.plan.inputs import PlanInputs
from appliance.plan.prepare import find_machine

from .machines import MODEL, load, machine, plan, small_model

CARD = "nvidia-h100-sxm-80g"


def here(torch: str = "2.13.0+cu130", **changes: object) -> HardwareFacts:
    """A machine with one H100, whose card has the changes."""
    facts = machine(CARD)
    cards = tuple(msgspec.structs.replace(each, **changes) for each in facts.accelerators)
    return msgspec.structs.replace(facts, torch=torch, accelerators=cards)


def warnings_of(facts: HardwareFacts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("appliance.plan.prepare.probe_machine", lambda: facts)
    loaded = load()
    found = find_machine(loaded.spec, None)
    assert found.profile.device == "cpu"
    inputs = PlanInputs(loaded=loaded, facts=found.facts, profile=found.profile, model=small_model())
    return run_passes(inputs).ledger.warnings


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (partial(here, torch=""), "it needs torch; pip install 'appliance[cuda]'"),
        (partial(here, torch="2.13.0+cpu"), "it needs a torch for cuda, and 2.13.0+cpu is installed"),
        (partial(here, torch="2.13.0+rocm6.4"), "it needs a torch for cuda, and 2.13.0+rocm6.4 is installed"),
        (
            partial(here, driver="570.124.06"),
            "driver 570.124.06 is too old for torch 2.13.0+cu130, whose",
        ),
        (partial(here, architecture="sm75", driver="580.1"), "there are no kernels for sm75, only for sm80"),
    ],
)
def test_auto_says_why_it_passes_over_a_card(
    facts: partial[HardwareFacts], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (warning,) = [text for text in warnings_of(facts(), monkeypatch) if "not used" in text]
    assert warning.startswith("NVIDIA H100 80GB HBM3 is not used, and the CPU computes: ")
    assert why in warning


def test_a_card_that_was_asked_for_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.plan.prepare.probe_machine", machine)
    for kind, vendor, option in (("cuda", "NVIDIA", "--gpus all"), ("rocm", "AMD", "/dev/kfd")):
        with pytest.raises(HardwareError, match=f"this machine shows no {vendor} GPU") as caught:
            find_machine(load("model: {source: ./m}\nhardware: {device: " + kind + "}\n").spec, None)
        assert option in caught.value.report()


@pytest.mark.parametrize(
    ("torch", "driver", "is_old"),
    [
        ("2.13.0+cu130", "580.65.06", False), ("2.13.0+cu130", "579.9", True), ("2.11.0+cu128", "525.60.13", False),
        ("2.11.0+cu118", "450.80", False), ("2.13.0", "470.1", False), (None, "1.0", False),
        ("2.13.0+cu130", "", False),
    ],
)  # fmt: skip
def test_drivers_and_builds(torch: str | None, driver: str, is_old: bool) -> None:
    assert bool(driver_obstacle("nvidia", torch, driver)) == is_old


def test_a_driver_of_amd_is_not_judged_by_cuda() -> None:
    facts = msgspec.structs.replace(machine("amd-mi300x-192g"), torch="2.13.0+rocm6.4")
    assert obstacle(facts, "rocm") == ""


def test_the_plan_knows_the_generations_that_have_tiles_and_each_but_one_has_a_profile() -> None:
    assert set(GPU_ARCHITECTURES) == set(ARCHITECTURES)
    with_profiles = {profile.name.partition("-")[2] for profile in load_profiles() if profile.device != "cpu"}
    assert set(GPU_ARCHITECTURES) - with_profiles == {"sm103"}


def test_a_set_of_gpus_asked_for_without_a_card_says_what_has_to_be_there() -> None:
    with pytest.raises(SpecError) as caught:
        plan(load(MODEL + "hardware: {kernels: {kernel_set: cuda}}\n"), facts=machine("server-epyc-9654"))
    [found] = caught.value.diagnostics
    assert found.hint == "nvidia-smi has to list the card; a container needs --gpus all; or write auto"


@pytest.mark.parametrize(
    ("name", "quantization"),
    [("nvidia-h100-sxm-80g", "fp8"), ("nvidia-a100-sxm-80g", "int8"), ("amd-mi300x-192g", "int8"),
     ("server-epyc-9654", "int8")],
)  # fmt: skip
def test_eight_bits_are_those_that_the_device_multiplies(name: str, quantization: str) -> None:
    facts = machine(name)
    inputs = PlanInputs(
        loaded=load(), facts=facts, profile=select_profile(facts, load_profiles()).profile, model=small_model()
    )
    assert eight_bits(inputs)[0] == quantization
