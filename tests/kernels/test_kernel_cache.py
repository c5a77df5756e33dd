"""The folders of compiled kernels: whose digest names them, and which are removed."""

import os
from pathlib import Path

import msgspec
import pytest

from appliance.engine import boot as boot_module
from appliance.kernels import kernel_cache
from appliance.kernels.errors import KernelSetError
from appliance.kernels.kernel_cache import (
    KEPT_FOLDERS,
    VARIABLE,
    keep_kernels,
    kernel_folder,
    kernels_digest,
    num_kernels,
    open_kernel_folder,
)
from tests.plan.machines import load, machine, plan


def test_another_source_and_another_compiler_have_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("a")
    found = [kernels_digest(tmp_path)]
    (tmp_path / "one.py").write_text("b")
    found.append(kernels_digest(tmp_path))
    monkeypatch.setattr(kernel_cache, "version", lambda name: f"{name} 99")
    found.append(kernels_digest(tmp_path))
    assert len(set(found)) == 3


def test_the_folders_that_were_used_longest_ago_are_removed(tmp_path: Path) -> None:
    for age in range(6):
        folder = tmp_path / f"nvidia-sm90-{age}"
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / "amd-gfx942-0").mkdir()
    own = open_kernel_folder(tmp_path, "nvidia-sm90").path
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {own.name, "amd-gfx942-0", *(f"nvidia-sm90-{age}" for age in range(KEPT_FOLDERS - 1))}


def test_kernels_that_were_left_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    own = open_kernel_folder(tmp_path, "nvidia-sm90").path
    for name in ("A/norm.cubin", "A/norm.json", "B/rope.hsaco"):
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).touch()
    assert num_kernels(own) == 2
    monkeypatch.setenv(VARIABLE, "")  # so that what is set is taken back
    monkeypatch.delenv(VARIABLE)
    assert keep_kernels(tmp_path, "nvidia-sm90").num_kept == 2
    assert os.environ[VARIABLE] == str(own)


def test_the_folder_that_the_plan_names_comes_before_the_environment_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/of/the/environment")
    named = tmp_path / "named"
    found = keep_kernels(tmp_path / "cache", "nvidia-sm90", str(named))
    assert found.path.parent == named
    assert found.path == kernel_folder(tmp_path / "cache", "nvidia-sm90", str(named))
    assert os.environ[VARIABLE] == str(found.path)
    (tmp_path / "file").touch()
    with pytest.raises(KernelSetError, match="cannot be kept"):
        keep_kernels(tmp_path / "cache", "nvidia-sm90", str(tmp_path / "file"))


def test_the_engine_names_the_folder_before_it_loads_a_gpu_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    on_gpu = plan(load(), facts=machine("nvidia-h100-sxm-80g"))
    found = boot_module._kept_kernels(on_gpu)
    assert found is not None
    assert found.num_kept == 0
    assert Path(os.environ[VARIABLE]) == tmp_path / "kernels" / found.folder
    assert boot_module._kept_kernels(msgspec.structs.replace(on_gpu, device="cpu")) is None
