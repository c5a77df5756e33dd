"""Kernel sets whose native library is not installed: passed over with a warning, or refused; unknown elsewhere."""

import msgspec
import pytest

from appliance.base import native
from appliance.base.errors import SpecError
from appliance.hardware import HardwareFacts

from .machines import MODEL, load, machine, plan


def built(*levels: str) -> HardwareFacts:
    return msgspec.structs.replace(machine(), built_levels=levels)


def test_a_machine_that_is_not_here_has_every_library() -> None:
    assert machine().built_levels is None
    found = plan(load())
    assert found.kernels.kernel_set == "cpu-avx512_bf16"
    assert (found.cannot_run, found.warnings) == ((), ())


def test_the_best_set_that_is_installed_is_planned_with_a_warning() -> None:
    found = plan(load(), facts=built("avx2", "generic"))
    assert found.kernels.kernel_set == "cpu-avx2"
    assert found.cannot_run == ()
    [warning] = found.warnings
    assert "cpu-avx2 is planned in place of cpu-avx512_bf16, which is faster" in warning
    assert "`APPLIANCE_LEVELS=avx2,avx512_bf16,generic pip install -e .`" in warning


def test_the_best_set_needs_no_others() -> None:
    found = plan(load(), facts=built("avx512_bf16"))
    assert found.kernels.kernel_set == "cpu-avx512_bf16"
    assert (found.cannot_run, found.warnings) == ((), ())


@pytest.mark.parametrize("levels", [(), ("amx",)])
def test_a_plan_without_a_library_cannot_run_and_says_how_to_get_it(levels: tuple[str, ...]) -> None:
    found = plan(load(), facts=built(*levels))
    assert found.kernels.kernel_set == "cpu-avx512_bf16"
    [reason] = found.cannot_run
    wanted = ",".join(sorted({*levels, "avx512_bf16"}))
    assert f"native library is not installed; in a checkout, `APPLIANCE_LEVELS={wanted} pip install" in reason


def test_a_set_that_is_named_is_refused_at_its_place() -> None:
    text = MODEL + "hardware: {kernels: {kernel_set: cpu-avx512}}\n"
    with pytest.raises(SpecError) as caught:
        plan(load(text), facts=built("avx512_bf16"))
    [found] = caught.value.diagnostics
    assert (found.path, found.rule) == ("hardware.kernels.kernel_set", "plan/kernel-set")
    assert "its native library is not installed" in found.message
    assert found.allowed == "auto, reference, cpu-avx512_bf16, torch"


def test_this_installation_has_the_libraries_of_its_levels() -> None:
    assert native.built_levels()
    for level in native.built_levels():
        assert native.library_path(level).is_file()
    assert not native.library_path("none").exists()
